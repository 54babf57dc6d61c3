"""The files of a policy, in LeRobot's layout: one folder `pretrained_model` with everything that acting needs.

model.safetensors            weights, by LeRobot's names where LeRobot has such a model
config.json, policy_*        what LeRobot needs to act with them (`policy.lerobot`)
train_config.json            the recipe that made them
vlarge.json                  what vlarge needs: sizes; for each embodiment cameras, image size, prompt, statistics
README.md                    the card: what it is, where its first weights come from, under which licence
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlarge.contracts import InputError
from vlarge.data.transforms import Preparation
from vlarge.models.network import PolicyNetwork
from vlarge.models.presets import Sizes, stored
from vlarge.models.registry import find_family
from vlarge.policy import foreign
from vlarge.policy.card import Origin, write_card
from vlarge.policy.lerobot import CONFIG, read_json, write_json, write_lerobot
from vlarge.policy.weights import read_tensors, write_tensors

OWN, RECIPE = "vlarge.json", "train_config.json"
MOST_NAMES = 4  # of one message


@dataclass(frozen=True)
class PolicyFiles:
    """A policy folder, read: `build` makes the network with its weights.

    preparations: by the name of the embodiment that they are for; none for weights of another project that come without
    statistics. origin: where its first weights come from.
    """

    folder: Path
    sizes: Sizes
    preparations: dict[str, Preparation]
    step: int
    origin: Origin | None

    @property
    def model_name(self) -> str:
        return self.sizes.model_name

    @property
    def first(self) -> Preparation | None:
        """Any of the preparations, for what they have in common: tokenizer and prompt."""
        return next(iter(self.preparations.values()), None)

    def build(self, device: torch.device) -> PolicyNetwork[Any, Any]:
        """The network in evaluation mode. Raises InputError listing every key that does not fit."""
        model = build_model(self.sizes, torch.device("meta"))
        theirs = read_tensors(self.folder)
        ours = find_family(self.model_name).from_lerobot(theirs, model.state_dict(), self.sizes)
        if spoilt := [name for name, value in ours.items() if not value.isfinite().all()]:
            raise InputError(f"{self.folder} has weights that are not finite: {', '.join(spoilt[:MOST_NAMES])}")
        model.load_state_dict({k: v.to(device, torch.float32) for k, v in ours.items()}, assign=True)
        return model.eval()


def build_model(sizes: Sizes, device: torch.device) -> PolicyNetwork[Any, Any]:
    """A new network, made on its device; on torch's meta device it has sizes only."""
    with device:
        return find_family(sizes.model_name).build(sizes)


def write_policy(
    folder: Path,
    *,
    sizes: Sizes,
    weights: dict[str, Tensor],
    preparations: Mapping[str, Preparation],
    recipe: dict[str, Any],
    step: int,
    origin: Origin | None = None,
) -> None:
    """Fill `folder` (created here) with the files above."""
    folder.mkdir(parents=True)
    family, first = find_family(sizes.model_name), next(iter(preparations.values()))
    write_tensors(folder, family.to_lerobot({k: v.detach().cpu() for k, v in weights.items()}, sizes))
    length = first.max_text_tokens
    fields, steps = family.lerobot_config(sizes, length), family.lerobot_steps(sizes, length)
    write_lerobot(folder, sizes.model_name, first, fields, steps)
    own = {
        "model": sizes.model_name,
        "sizes": asdict(sizes),
        "step": step,
        "origin": origin and asdict(origin),
        "embodiments": {name: p.to_json() for name, p in preparations.items()},
    }
    write_json(folder / OWN, own)
    write_json(folder / RECIPE, recipe)
    write_card(folder, sizes.model_name, step, list(preparations), origin)


def read_policy(path: Path, model_name: str = "") -> PolicyFiles:
    """Open a policy folder, a checkpoint, or a run directory (its last checkpoint). Weights are not read yet.

    Also LeRobot's, openpi's and Isaac-GR00T's; model_name says which model it is where their config.json does not.
    """
    folder = find_policy_folder(path)
    if not (folder / OWN).is_file():
        return _read_foreign(folder, model_name)
    own = read_json(folder / OWN)
    if not isinstance(own.get("model"), str) or not isinstance(own.get("sizes"), dict):
        raise InputError(f"{folder / OWN} names no model and sizes; use another checkpoint")
    sizes: Sizes = stored(find_family(own["model"]).Config, own["sizes"])
    if sizes.model_name != own["model"]:
        raise InputError(f"{folder / OWN} has sizes of {sizes.model_name!r} and says {own['model']!r}")
    step = own.get("step", 0)
    if type(step) is not int:
        raise InputError(f"{folder / OWN} has step {step!r}, which is no number; use another checkpoint")
    return PolicyFiles(
        folder=folder,
        sizes=sizes,
        preparations=_read_preparations(folder / OWN, own.get("embodiments"), sizes),
        step=step,
        origin=_read_origin(folder / OWN, own.get("origin")),
    )


def _read_preparations(path: Path, embodiments: Any, sizes: Sizes) -> dict[str, Preparation]:
    if not isinstance(embodiments, dict) or not embodiments:
        raise InputError(f"{path} names no embodiment; use another checkpoint")
    found = {name: Preparation.from_json(each) for name, each in embodiments.items()}
    for name, each in found.items():
        if (each.image_size, each.action_horizon) != (sizes.image_size, sizes.action_horizon):
            raise InputError(
                f"{path} prepares images of {each.image_size} and {each.action_horizon} actions for {name!r}; its model"
                f" takes {sizes.image_size} and {sizes.action_horizon}"
            )
        if not 0 <= each.embodiment < getattr(sizes, "num_embodiments", 1):
            raise InputError(f"{path} gives {name!r} the weights of robot {each.embodiment}, which its model has not")
    return found


def _read_origin(path: Path, origin: Any) -> Origin | None:
    if not origin:
        return None
    try:
        return Origin(**origin)
    except TypeError as error:
        raise InputError(f"{path} names no origin that this version of vlarge knows: {error}") from error


def _read_foreign(folder: Path, model_name: str) -> PolicyFiles:
    sizes, preparation = foreign.read(folder, model_name)
    return PolicyFiles(
        folder=folder,
        sizes=sizes,
        preparations={foreign.EMBODIMENT: preparation} if preparation else {},
        step=0,
        origin=foreign.origin(folder),
    )


def find_policy_folder(path: Path) -> Path:
    """The `pretrained_model` folder that a path of any kind means. Raises InputError with the places looked in."""
    places = [path, path / "pretrained_model", path / "checkpoints" / "last" / "pretrained_model"]
    for place in places:
        if (place / CONFIG).is_file() or (place / OWN).is_file():
            return place
    if not path.exists():
        raise InputError(f"no such policy: {path}")
    raise InputError(f"{path} holds no policy: no {CONFIG} in it, in pretrained_model/ or in checkpoints/last/")
