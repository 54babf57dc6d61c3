"""GR00T's sizes: presets, datasets that do not fit, robots' numbers, checkpoints of Isaac-GR00T, buckets of time."""

import re
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from vlarge.contracts import InputError
from vlarge.models.config import ModelConfig
from vlarge.models.gr00t import resolve
from vlarge.models.gr00t.checkpoint import foreign_sizes
from vlarge.models.gr00t.config import PRESETS, GrootConfig
from vlarge.models.gr00t.convert import to_lerobot
from vlarge.models.gr00t.denoiser import bucket
from vlarge.models.gr00t.model import Groot
from vlarge.models.presets import stored
from vlarge.models.registry import find_family

FULL = PRESETS["n1.5-3b"]
# The config.json of GR00T-N1.5-3B, without what says nothing of its sizes.
RELEASED: dict[str, Any] = {
    "action_dim": 32,
    "action_horizon": 16,
    "action_head_cfg": {
        "action_dim": 32, "action_horizon": 16, "add_pos_embed": True, "backbone_embedding_dim": 2048,
        "diffusion_model_cfg": {
            "attention_head_dim": 48, "cross_attention_dim": 2048, "dropout": 0.2, "final_dropout": True,
            "interleave_self_attention": True, "norm_type": "ada_norm", "num_attention_heads": 32, "num_layers": 16,
            "output_dim": 1024, "positional_embeddings": None,
        },
        "hidden_size": 1024, "input_embedding_dim": 1536, "max_action_dim": 32, "max_state_dim": 64,
        "num_inference_timesteps": 4, "num_target_vision_tokens": 32, "num_timestep_buckets": 1000, "use_vlln": True,
        "vl_self_attention_cfg": {
            "attention_head_dim": 64, "dropout": 0.2, "final_dropout": True, "num_attention_heads": 32,
            "num_layers": 4, "positional_embeddings": None,
        },
    },
    "backbone_cfg": {"project_to_dim": None, "select_layer": 12},
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Groot:
    with torch.device("meta"):
        return Groot(FULL)


@pytest.fixture(scope="module")
def shapes(model: Groot) -> dict[str, tuple[int, ...]]:
    """Of every weight that we would write for the released model."""
    return {name: tuple(value.shape) for name, value in to_lerobot(model.state_dict(), FULL).items()}


def test_a_full_checkpoint_has_isaac_groots_keys(shapes: dict[str, tuple[int, ...]], shared: Path) -> None:
    theirs, ours = {}, {}
    for line in (shared / "oracle" / "keys_groot.txt").read_text().splitlines():
        if found := re.fullmatch(r" *(\d+) x (\(.*\)) +(\S+)", line):
            theirs[found[3]] = int(found[1]), found[2].strip()
    patterns = [re.sub(r"\.\d+\.", ".N.", name) for name in shapes]
    for pattern in dict.fromkeys(patterns):
        own = [shape for at, shape in zip(patterns, shapes.values(), strict=True) if at == pattern]
        ours[pattern] = len(own), " or ".join(str(shape) for shape in sorted(set(own)))
    assert ours == theirs


def test_only_what_is_dead_is_missing(model: Groot) -> None:
    """2,413,522,880 in the reference, without a pooling head and positions that no chunk reaches."""
    pooling, positions = 15_238_352, (1024 - 16) * 1536
    assert sum(p.numel() for p in model.parameters()) == 2_413_522_880 - pooling - positions


def test_sizes_of_a_released_checkpoint(shapes: dict[str, tuple[int, ...]]) -> None:
    assert foreign_sizes(RELEASED, shapes) == FULL
    tied = {"_groot_model." + name: shape for name, shape in shapes.items() if "embed_tokens" not in name}
    assert foreign_sizes(RELEASED, tied) == FULL


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("backbone_cfg.select_layer", 13, "backbone_cfg.select_layer 13 in config.json, 12 in the weights"),
        ("action_head_cfg.diffusion_model_cfg.attention_head_dim", 64, "2048 in config.json, 1536 in the weights"),
        ("action_head_cfg.max_state_dim", 32, "max_state_dim 32 in config.json, 64 in the weights"),
        ("action_head_cfg.use_vlln", False, "use_vlln False; GR00T N1.5 has True"),
        ("action_head_cfg.num_inference_timesteps", 0, "must be a number of at least 1"),
        ("action_head_cfg.vl_self_attention_cfg", None, "has no action_head_cfg.vl_self_attention_cfg"),
    ],
)
def test_a_config_that_does_not_add_up_is_refused(
    path: str, value: Any, words: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    config = deepcopy(RELEASED)
    *parents, last = path.split(".")
    table = config
    for parent in parents:
        table = table[parent]
    table[last] = value
    with pytest.raises(InputError, match=re.escape(words)):
        foreign_sizes(config, shapes)


def test_shapes_of_another_model_are_refused(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match="has no action_head_cfg"):
        foreign_sizes({"type": "groot", "backbone_cfg": {"project_to_dim": None}}, shapes)
    with pytest.raises(InputError, match="no weight backbone"):
        foreign_sizes(RELEASED, {"model.embed_tokens.weight": (3, 4)})


def test_a_recipe_and_a_dataset_decide_the_sizes() -> None:
    dims = {"state_dim": 6, "action_dim": 7}
    tiny = resolve(ModelConfig(name="gr00t", action_horizon=12), vocab_size=4373, **dims)
    assert (tiny.max_state_dim, tiny.max_action_dim, tiny.action_horizon) == (6, 7, 12)
    assert stored(GrootConfig, asdict(tiny)) == tiny
    assert resolve(ModelConfig(name="gr00t", preset="n1.5-3b"), vocab_size=151_670, **dims) == FULL
    assert find_family("gr00t").resolve is resolve


def test_too_many_dimensions_are_refused_not_resized() -> None:
    """Isaac-GR00T#314: heads made larger start without sense, and gradients overflow."""
    with pytest.raises(InputError, match="actions have 33 dimensions, the model takes at most 32"):
        FULL.check_dims(state_dim=64, action_dim=33)
    with pytest.raises(InputError, match="states have 65 dimensions, the model takes at most 64"):
        FULL.check_dims(state_dim=65, action_dim=32)
    with pytest.raises(InputError, match="tokenizer has 151681"):
        resolve(ModelConfig(preset="n1.5-3b"), vocab_size=151_681, state_dim=1, action_dim=1)
    with pytest.raises(InputError, match=r"choose one of tiny, n1\.5-3b"):
        resolve(ModelConfig(preset="base"), vocab_size=1, state_dim=1, action_dim=1)


@pytest.mark.parametrize(
    "wrong", [{"image_size": 100}, {"dit_depth": 1}, {"action_horizon": 2000}, {"image_token": 4373}, {"vl_heads": 3}]
)
def test_sizes_that_do_not_fit_each_other_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong)).replace("vl_heads", "width")):
        replace(PRESETS["tiny"], **wrong)


def test_robots_have_numbers_of_their_own() -> None:
    assert [FULL.embodiment_number(name, ()) for name in ("gr1", "oxe_droid", "agibot_genie1")] == [24, 17, 26]
    assert FULL.embodiment_number("new_embodiment", ()) == FULL.embodiment_number("so101", ()) == 31
    taken: list[int] = []
    for robot in range(32):
        taken.append(FULL.embodiment_number(f"robot{robot}", taken))
    assert taken[:8] == [31, 30, 29, 28, 27, 25, 23, 22]
    assert taken[-3:] == [26, 24, 17]
    assert sorted(taken) == list(range(32))
    with pytest.raises(InputError, match="weights for 32 robots, and all are taken: 'one more'"):
        FULL.embodiment_number("one more", taken)
    assert PRESETS["tiny"].embodiment_number("gr1", [3]) == 2


def test_buckets_of_time_are_the_references() -> None:
    """Also where a step falls on a bucket's edge and its time, one minus a fraction, lies just below."""
    for steps in range(1, 101):
        ours = [int(bucket(torch.tensor([1.0 - (1.0 - i / steps)]), 1000)) for i in range(steps)]
        assert ours == [int(i / steps * 1000) for i in range(steps)], steps
    assert bucket(torch.tensor([0.0317, 0.9999999, 1.0]), 1000).tolist() == [31, 999, 1000]
