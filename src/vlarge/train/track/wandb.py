"""The run in Weights & Biases: in its folder for `wandb sync` ("offline"), or sent as it goes ("online")."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vlarge.contracts import InputError
from vlarge.train.track.service import check_reachable, keep_id, known_id, require
from vlarge.train.track.tracker import Tracked, scalars

MODES = ("offline", "online")
SETTING = "track.wandb"
INIT_S = 30.0
FINISH_S = 60.0  # what is not sent by then stays in the run directory for `wandb sync`


class WandbTracker:
    """Scalars under train/, over train/step, so that a step done again after a resume is drawn again.

    Raises InputError for another mode, without the package, and online where the server or the login fails.
    """

    def __init__(self, run: Tracked) -> None:
        mode = run.recipe.track.wandb
        if mode not in MODES:
            raise InputError(f"{SETTING} is {mode!r}; use 'offline', 'online', or '' for none")
        wandb = require("wandb", SETTING)
        run_id = known_id(run.folder, "wandb") or secrets.token_hex(4)
        settings = wandb.Settings(mode=mode, run_id=run_id, **_quiet(run))
        if mode == "online":
            settings.resume = "allow"
            check_reachable(wandb.setup().settings.base_url, SETTING)
        try:
            self._run = wandb.init(
                project=run.recipe.track.project, name=run.name, config=asdict(run.recipe), settings=settings
            )
        except (wandb.errors.Error, TimeoutError) as error:
            raise InputError(f"{SETTING}: {error}; log in with `wandb login`, or use 'offline'") from error
        self._run.define_metric("train/step", hidden=True)
        self._run.define_metric("train/*", step_metric="train/step")
        keep_id(run.folder, "wandb", run_id)

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log({f"train/{key}": value for key, value in (scalars(record) | {"step": record["step"]}).items()})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _quiet(run: Tracked) -> dict[str, Any]:
    """Nothing of the environment, the command line, the user, the code or the terminal is collected."""
    return {
        "root_dir": str(run.folder),
        "init_timeout": INIT_S,
        "finish_timeout": FINISH_S,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
    }
