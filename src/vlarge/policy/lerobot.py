"""LeRobot's files beside the weights, so that LeRobot 0.6 loads a policy of ours and acts the same.

config.json                  the kind of policy and its features
policy_preprocessor.json     what an observation goes through, policy_postprocessor.json: what actions go through
*_processor.safetensors      the statistics that these normalise by

LeRobot knows one robot for each policy: where ours knows several, this is the first. It knows no stages of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from vlarge.contracts import ACTION, IMAGE_PREFIX, STATE, InputError
from vlarge.data.stats import FeatureStats
from vlarge.data.transforms import Preparation
from vlarge.data.transforms.normalise import STATISTICS
from vlarge.policy.weights import beside, read_file

CONFIG, PREPROCESSOR, POSTPROCESSOR = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"
MODES = {"quantile": "QUANTILES", "mean_std": "MEAN_STD", "min_max": "MIN_MAX"}
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
Features = dict[str, dict[str, Any]]
Steps = Sequence[tuple[str, dict[str, Any]]]  # registered names and settings
FIRST: Steps = (("rename_observations_processor", {"rename_map": {}}), ("to_batch_processor", {}))


def write_lerobot(folder: Path, model_name: str, p: Preparation, fields: Mapping[str, Any], steps: Steps) -> None:
    """Write them into `folder`. fields, steps: what the model's family says (`lerobot_config`, `lerobot_steps`)."""
    inputs, outputs = _features(p)
    modes = {
        "VISUAL": "IDENTITY", "STATE": MODES[p.state_normalizer.method], "ACTION": MODES[p.action_normalizer.method]
    }  # fmt: skip
    config = {
        "type": model_name,
        "n_obs_steps": 1,
        "chunk_size": p.action_horizon,
        "n_action_steps": p.action_horizon,
        "input_features": inputs,
        "output_features": outputs,
        "normalization_mapping": modes,
        **fields,
    }
    write_json(folder / CONFIG, config)
    normalizer = {"eps": 1e-8, "features": inputs | outputs, "norm_map": modes}
    before = [*FIRST, *((name, normalizer if name == NORMALIZER else settings) for name, settings in steps)]
    after = [(UNNORMALIZER, normalizer | {"features": outputs})]
    device = ("device_processor", {"device": "cpu", "float_dtype": None})
    _write_pipeline(folder, PREPROCESSOR, [*before, device], _tensors(p))
    _write_pipeline(folder, POSTPROCESSOR, [*after, device], _tensors(p))


def _features(p: Preparation) -> tuple[Features, Features]:
    picture = {"type": "VISUAL", "shape": [3, p.image_size, p.image_size]}
    inputs: Features = {p.chain.camera(key): picture for key in p.cameras}
    inputs[STATE] = {"type": "STATE", "shape": [p.state_normalizer.dim]}
    return inputs, {ACTION: {"type": "ACTION", "shape": [p.action_normalizer.dim]}}


def _tensors(p: Preparation) -> dict[str, torch.Tensor]:
    stats = {STATE: p.state_normalizer.stats, ACTION: p.action_normalizer.stats}
    return {
        f"{key}.{name}": torch.from_numpy(getattr(each, name).astype(np.float32))
        for key, each in stats.items()
        for name in STATISTICS
    }


def _write_pipeline(folder: Path, file: str, steps: Steps, statistics: dict[str, torch.Tensor]) -> None:
    name, written = file.removesuffix(".json"), list[dict[str, Any]]()
    for number, (step, settings) in enumerate(steps):
        written.append({"registry_name": step, "config": settings})
        if step in (NORMALIZER, UNNORMALIZER):
            written[-1]["state_file"] = f"{name}_step_{number}_{step}.safetensors"
            save_file(statistics, folder / written[-1]["state_file"])
    write_json(folder / file, {"name": name, "steps": written})


def read_statistics(folder: Path) -> dict[str, FeatureStats]:
    """Of state and action, as a folder of LeRobot's normalises them; empty where it has none. Raises InputError."""
    files = [step.get("state_file") for step in read_steps(folder) if step.get("registry_name") == NORMALIZER]
    if not files or not files[0]:
        return {}
    tensors = read_file(beside(folder / PREPROCESSOR, files[0]))
    wanted = {key: {name: f"{key}.{name}" for name in STATISTICS} for key in (STATE, ACTION)}
    if any(name not in tensors for names in wanted.values() for name in names.values()):
        return {}
    return {
        key: FeatureStats(**{name: tensors[full].double().numpy() for name, full in names.items()}, count=0)
        for key, names in wanted.items()
    }


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """What an observation goes through, as LeRobot writes it; empty where the folder does not say."""
    if not (folder / PREPROCESSOR).is_file():
        return []
    steps = read_json(folder / PREPROCESSOR).get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise InputError(f"{folder / PREPROCESSOR} should hold a list of steps; use another checkpoint")
    return steps


def read_methods(config: Mapping[str, Any]) -> tuple[str, str]:
    """How state and action are normalised. Raises InputError for a way that we do not have."""
    ours = {theirs: method for method, theirs in MODES.items()}
    said = config.get("normalization_mapping", {})
    for kind in ("STATE", "ACTION"):
        if said.get(kind) not in ours:
            raise InputError(f"config.json normalises {kind} by {said.get(kind)!r}; known are {', '.join(ours)}")
    return ours[said["STATE"]], ours[said["ACTION"]]


def cameras_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The cameras of a LeRobot config, in its order."""
    return tuple(key for key in config.get("input_features", {}) if key.startswith(IMAGE_PREFIX))


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Raises InputError for what is not a JSON object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; use another checkpoint") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} should hold a JSON object")
    return data
