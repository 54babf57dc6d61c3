"""The files of a policy, in LeRobot's layout: one folder `pretrained_model` with everything that acting needs.

config.json                  the kind of policy, its features, and our sizes under "vlarge"
model.safetensors            weights by LeRobot's names
train_config.json            the recipe that made them
policy_preprocessor.json     for each embodiment: cameras, image size, prompt, statistics
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.transforms import Preparation
from vlarge.models.registry import find_family

CONFIG, WEIGHTS, RECIPE, PREPARATION = (
    "config.json",
    "model.safetensors",
    "train_config.json",
    "policy_preprocessor.json",
)


@dataclass(frozen=True)
class PolicyFiles:
    """A policy folder, read: `build` makes the network with its weights.

    preparations: by the name of the embodiment that they are for; at least one.
    """

    folder: Path
    model_name: str
    sizes: Any
    preparations: dict[str, Preparation]
    step: int

    @property
    def first(self) -> Preparation:
        """Any of them, for what they have in common: sizes and tokenizer."""
        return next(iter(self.preparations.values()))

    def build(self, device: torch.device) -> nn.Module:
        """The network in evaluation mode. Raises InputError listing every key that does not fit."""
        model = build_model(self.model_name, self.sizes, torch.device("meta"))
        weights = {name: value.to(device, torch.float32) for name, value in read_weights(self, model).items()}
        model.load_state_dict(weights, assign=True)
        return model.eval()


def build_model(model_name: str, sizes: Any, device: torch.device) -> nn.Module:
    """A new network, made on its device; on torch's meta device it has sizes only."""
    with device:
        return find_family(model_name).build(sizes)


def write_policy(
    folder: Path,
    *,
    model_name: str,
    sizes: Any,
    weights: dict[str, Tensor],
    preparations: Mapping[str, Preparation],
    recipe: dict[str, Any],
    step: int,
) -> None:
    """Fill `folder` (created here) with the files above."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    theirs = find_family(model_name).to_lerobot({k: v.detach().cpu() for k, v in weights.items()}, sizes)
    save_file({k: v.contiguous() for k, v in theirs.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    horizon = next(iter(preparations.values())).action_horizon
    config = {
        "type": model_name,
        "chunk_size": horizon,
        "n_action_steps": horizon,
        **_features(list(preparations.values())),
        "vlarge": {"sizes": asdict(sizes), "step": step},
    }
    write_json(folder / CONFIG, config)
    write_json(folder / PREPARATION, {"embodiments": {name: p.to_json() for name, p in preparations.items()}})
    write_json(folder / RECIPE, recipe)


def _features(preparations: Sequence[Preparation]) -> dict[str, Any]:
    # What LeRobot's config.json says: every camera of any embodiment, the widest state and action.
    features: dict[str, Any] = {
        p.chain.camera(key): {"type": "VISUAL", "shape": [3, p.image_size, p.image_size]}
        for p in preparations
        for key in p.cameras
    }
    features[STATE] = {"type": "STATE", "shape": [max(p.state_normalizer.dim for p in preparations)]}
    action = {"type": "ACTION", "shape": [max(p.action_normalizer.dim for p in preparations)]}
    return {"input_features": features, "output_features": {ACTION: action}}


def read_policy(path: Path) -> PolicyFiles:
    """Open a policy folder, a checkpoint, or a run directory (its last checkpoint). Weights are not read yet."""
    folder = find_policy_folder(path)
    config = read_json(folder / CONFIG)
    own = config.get("vlarge")
    if not isinstance(own, dict) or "sizes" not in own or not isinstance(config.get("type"), str):
        raise InputError(f"{folder / CONFIG} holds a {config.get('type', 'nameless')!r} policy not written by vlarge")
    return PolicyFiles(
        folder=folder,
        model_name=config["type"],
        sizes=find_family(config["type"]).read_sizes(own["sizes"]),
        preparations=_read_preparations(folder / PREPARATION),
        step=int(own.get("step", 0)),
    )


def _read_preparations(path: Path) -> dict[str, Preparation]:
    embodiments = read_json(path).get("embodiments")
    if not isinstance(embodiments, dict) or not embodiments:
        raise InputError(f"{path} names no embodiment; was this checkpoint written by vlarge?")
    return {name: Preparation.from_json(each) for name, each in embodiments.items()}


def read_weights(files: PolicyFiles, model: nn.Module) -> dict[str, Tensor]:
    """The stored weights by our names, strictly."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        theirs = load_file(files.folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {files.folder / WEIGHTS}: {error}; use another checkpoint") from error
    return find_family(files.model_name).from_lerobot(theirs, model.state_dict(), files.sizes)


def find_policy_folder(path: Path) -> Path:
    """The `pretrained_model` folder that a path of any kind means. Raises InputError with the places looked in."""
    places = [path, path / "pretrained_model", path / "checkpoints" / "last" / "pretrained_model"]
    for place in places:
        if (place / CONFIG).is_file():
            return place
    if not path.exists():
        raise InputError(f"no such policy: {path}")
    raise InputError(f"{path} holds no policy: no {CONFIG} in it, in pretrained_model/ or in checkpoints/last/")


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; use another checkpoint") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} should hold a JSON object")
    return data
