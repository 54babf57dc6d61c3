"""Policy folders of other projects: LeRobot's, openpi's (PyTorch) and Isaac-GR00T's, as ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.hub import resolve
from vlarge.data.tokens import load_tokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.models.presets import Sizes
from vlarge.models.registry import Family, find_family
from vlarge.policy.card import Origin, licence_of
from vlarge.policy.lerobot import CONFIG, cameras_of, read_json, read_methods, read_statistics, read_steps
from vlarge.policy.weights import read_shapes

EMBODIMENT = "lerobot"  # what the robot of such a folder is called
OUR_NAMES = {"gr00t_n1_5": "gr00t"}  # their kinds of policy that have another name here


def read(folder: Path, model_name: str) -> tuple[Sizes, Preparation | None]:
    """The model's sizes, and how observations are prepared where the folder has statistics and a tokenizer.

    model_name: what it is where config.json does not say. Raises InputError for a model that is not known here.
    """
    config = read_json(folder / CONFIG)
    told = config.get("type") or config.get("model_type")
    said = told or model_name
    if not isinstance(said, str) or not said:
        raise InputError(f"{folder / CONFIG} does not say which model it is: set model.name")
    name = OUR_NAMES.get(said, said)
    try:
        family = find_family(name)
    except InputError as error:
        raise InputError(f"{folder / CONFIG} holds a {said!r} policy: {error}") from error
    sizes = _sizes(folder, config, family)
    if sizes.model_name != name:
        where, advice = (CONFIG, "use another checkpoint") if told else ("model.name", "set that")
        raise InputError(f"{folder} has the weights of {sizes.model_name!r}, {where} says {name!r}: {advice}")
    return sizes, _preparation(folder, config, sizes)


def _sizes(folder: Path, config: Mapping[str, Any], family: Family) -> Sizes:
    try:
        return family.foreign_sizes(config, read_shapes(folder))
    except InputError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # what was written is of another kind
        raise InputError(f"{folder / CONFIG} and the weights beside it do not make a model: {error}") from error


def origin(folder: Path) -> Origin:
    """Where its weights come from: the folder itself."""
    return Origin(_source(folder), licence_of(folder))


def _source(folder: Path) -> str:
    # A snapshot in Hugging Face's cache goes by its id and commit.
    for parent in folder.parents:
        if parent.name.startswith("models--"):
            return f"hf://{parent.name.removeprefix('models--').replace('--', '/')}@{folder.name}"
    if folder.name == "pretrained_model":  # of a run: which one, and at which step
        parts = folder.parts[:-1]
        return "/".join(parts[-3:] if parts[-2:-1] == ("checkpoints",) else parts[-1:])
    return folder.name


def _preparation(folder: Path, config: Mapping[str, Any], sizes: Sizes) -> Preparation | None:
    stats = read_statistics(folder)
    tokenizer = _tokenizer(folder)
    if not stats or tokenizer is None:
        return None
    state, action = read_methods(config)
    return Preparation(
        image_size=sizes.image_size,
        action_horizon=sizes.action_horizon,
        cameras=cameras_of(config),
        tokenizer=tokenizer,
        state_normalizer=Normalizer(state, stats[STATE]),
        action_normalizer=Normalizer(action, stats[ACTION]),
        max_text_tokens=int(config.get("tokenizer_max_length", 200)),
        prompt=sizes.prompt,
        padding=sizes.PADDING,
    )


def _tokenizer(folder: Path) -> Any:
    """From the folder itself, or from the local cache under the name that LeRobot's processor gives."""
    if (folder / "tokenizer.json").is_file() or (folder / "tokenizer.model").is_file():
        return load_tokenizer(str(folder))
    for step in read_steps(folder):
        name = step.get("config", {}).get("tokenizer_name")
        if isinstance(name, str):
            try:
                return load_tokenizer(str(resolve(f"hf://{name}", repo_type="model")))
            except InputError:
                return None
    return None
