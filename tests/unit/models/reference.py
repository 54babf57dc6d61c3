"""A padded reference's tensors beside ours: its inputs without their padding, and how near results have to be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vlarge.contracts import InputError, PackedBatch
from vlarge.models.naming import Naming


def packed(t: dict[str, Tensor], c: dict[str, Any], valid_BS: Tensor | None = None) -> PackedBatch:
    """Present cameras, real tokens and, where `valid_BS` says which those are, valid action steps only."""
    present, tokens = t["in.image_mask"], t["in.token_mask"]
    num_samples = len(present)
    state = t["in.state"][:, : c["state_dim"]].numpy() if "in.state" in t else np.zeros((num_samples, 1), np.float32)
    return PackedBatch(
        sample_ids_B3=np.zeros((num_samples, 3), np.int64),
        images_NHWC=t["in.images"][present].permute(0, 2, 3, 1).numpy(),
        num_images_B=present.sum(1).numpy(),
        text_T=t["in.tokens"][tokens].numpy(),
        num_text_B=tokens.sum(1).numpy(),
        state_BA=state,
        actions_SA=(t["in.actions"].flatten(0, 1) if valid_BS is None else t["in.actions"][valid_BS]).numpy(),
        num_actions_B=np.full(num_samples, c["chunk"]) if valid_BS is None else valid_BS.sum(1).numpy(),
        action_dims_B=np.full(num_samples, c["action_dim"]),
        embodiments_B=np.zeros(num_samples, np.int64),
    )


def read_golden(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """A golden file: all its tensors, of those the parameters by their names, and what its JSON says."""
    tensors, meta = load_file(path), json.loads(path.with_suffix(".json").read_text())
    return tensors, of_kind(tensors, "param."), meta


def of_kind(tensors: Mapping[str, Tensor], kind: str, root: str = "") -> dict[str, Tensor]:
    """The tensors of one kind by their names, `root` before each."""
    return {root + name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}


def gradients_are_theirs(
    parameters: Iterable[tuple[str, nn.Parameter]], gradients: Mapping[str, Tensor], naming: Naming, elsewhere: str = ""
) -> int:
    """Compares every gradient that there is, in our shape; returns how many.

    elsewhere: beginning of the names whose gradients another file has.
    """
    checked = 0
    for name, parameter in parameters:
        assert parameter.grad is not None, f"{name} is dead"
        theirs = gradients.get(naming.theirs(name))
        if theirs is None:  # attention-key biases: zero in exact arithmetic
            assert name.endswith(".k.bias") or (elsewhere and name.startswith(elsewhere))
            continue
        close(parameter.grad, naming.to_ours(name, theirs), 1e-5)
        checked += 1
    return checked


def loading_is_strict(
    read: Callable[[dict[str, Tensor]], object], params: dict[str, Tensor], weight: str, bias: str
) -> None:
    """A misnamed weight and a mis-shaped bias are told in one error."""
    broken = dict(params)
    broken[weight + "s"] = broken.pop(weight)
    broken[bias] = torch.zeros(3)
    with pytest.raises(InputError) as error:
        read(broken)
    for part in (f"missing ['{weight}']", f"unexpected ['{weight}s']", "(3,)"):
        assert part in str(error.value)


def vision_sizes(v: dict[str, int]) -> dict[str, int]:
    """Of the golden files' vision towers, by our names."""
    names = {"width": "vision_width", "depth": "vision_depth", "mlp": "vision_mlp", "heads": "vision_heads"}
    return {names.get(name, name): value for name, value in v.items() if name != "image"} | {"image_size": v["image"]}


def error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert (found := error(ours, theirs)) <= tolerance, f"{found:.2e} > {tolerance:.0e}"
