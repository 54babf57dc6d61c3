"""run.json says with what each start was made, from an allow-list."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vlarge
from vlarge.contracts import InputError
from vlarge.train.track.provenance import VARIABLES, commit, record_start, settings, versions
from vlarge.train.track.tracker import Tracked


def test_every_start_is_listed(make_run: Callable[..., Tracked], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("SOME_TOKEN", "hunter2")
    for done_steps in (0, 40):
        record_start(make_run(done_steps))
    text = (make_run().folder / "run.json").read_text()
    first, second = json.loads(text)["starts"]
    assert (first["step"], second["step"]) == (0, 40)
    assert first["versions"]["torch"] == torch.__version__.partition("+")[0] or first["versions"]["torch"]
    assert first["versions"]["python"] == sys.version.split()[0]
    assert first["versions"]["vlarge"] == vlarge.__version__
    assert first["settings"]["environment"]["OMP_NUM_THREADS"] == "7"
    assert first["settings"]["torch_threads"] == torch.get_num_threads()
    assert "hunter2" not in text


def test_of_the_environment_only_the_list_is_taken() -> None:
    everything = dict.fromkeys(("HOME", "AWS_SECRET_ACCESS_KEY", "NCCL_SECRET", *VARIABLES), "x")
    assert settings(everything)["environment"] == dict.fromkeys(VARIABLES, "x")
    assert not [name for name in VARIABLES if "KEY" in name or "TOKEN" in name.split("_") or "SECRET" in name]


def test_the_commit_is_that_of_the_files_own_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    own, installed = tmp_path / "own.py", tmp_path / "installed.py"
    own.write_text("1")
    assert commit(own) is None
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    installed.write_text("somebody else's")
    assert commit(own) == git("rev-parse", "HEAD")
    assert commit(installed) is None
    own.write_text("2")
    assert commit(own) == git("rev-parse", "HEAD") + "-dirty"


def test_versions_are_those_installed() -> None:
    assert {"vlarge", "commit", "python", "torch", "numpy", "pyarrow"} <= versions().keys()


def test_a_broken_file_is_named(make_run: Callable[..., Tracked]) -> None:
    run = make_run()
    (run.folder / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json cannot be read: remove it"):
        record_start(run)
