"""The published sizes: every weight of LeRobot's, less those that no output depends on."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vlarge.contracts import InputError
from vlarge.models.pi0.checkpoint import foreign_sizes
from vlarge.models.pi0.config import MAX_STATE_DIM, PRESETS, Pi0Config
from vlarge.models.pi0.convert import to_lerobot
from vlarge.models.pi0.model import Pi0

NEVER_USED = {
    "the language head, a copy of the embeddings or weights of its own": 257_152 * 2048,
    "the expert's language head": 257_152 * 1024,
    "queries of the last prefix layer": 2048 * 2048,
    "their output": 2048 * 2048,
    "its feed-forward part": 3 * 2048 * 16_384,
    "its second norm": 2048,
    "the prefix's last norm": 2048,
}
LAST_GATE = 1024 * 1024 + 1024  # of π0.5's last norm, which no residual branch follows


def full(name: str) -> Pi0Config:
    return replace(PRESETS["base"], max_state_dim=MAX_STATE_DIM if name == "pi0" else 0)


@pytest.mark.parametrize(("name", "theirs", "gate"), [("pi05", 4_143_404_816, LAST_GATE), ("pi0", 4_028_019_472, 0)])
def test_parameters_of_the_published_size(name: str, theirs: int, gate: int, shared: Path) -> None:
    with torch.device("meta"):
        model = Pi0(full(name))
    written = to_lerobot(model.state_dict(), model.config)
    kinds: dict[str, list[tuple[int, ...]]] = {}
    for key, value in written.items():
        kinds.setdefault(re.sub(r"\.\d+\.", ".N.", key), []).append(tuple(value.shape))
    found = {kind: (len(shapes), shapes[0]) for kind, shapes in kinds.items()}
    assert found == listed_shapes(shared / "oracle" / f"keys_{name}.txt")
    total = sum(value.numel() for value in written.values())
    assert total == theirs
    assert sum(p.numel() for p in model.parameters()) == total - sum(NEVER_USED.values()) - gate
    assert foreign_sizes({}, {key: tuple(value.shape) for key, value in written.items()}) == model.config


def listed_shapes(path: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Kind of key -> how many, and their shape."""
    found = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"\s*(\d+) x (\([\d, ]*\))\s+(\S+)$", line):
            found[match[3]] = (int(match[1]), tuple(int(n) for n in re.findall(r"\d+", match[2])))
    return found


def test_weights_that_are_not_of_this_model_are_named() -> None:
    with pytest.raises(InputError, match=r"no weight model\.paligemma.*k_proj\.weight: it is not of π0"):
        foreign_sizes({}, {"model.embed.weight": (3, 4)})
