"""Where each token of a packed batch lies: index arrays made once per batch and used by every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlarge.models.attention import Segments


@dataclass(frozen=True)
class Layout:
    """The prefix of a sample is its images' tokens, then its text. Each draw of a sample is one suffix.

    prefix_index_T: rows of [image tokens; text tokens], in prefix order.
    positions_T, positions_S: position of each token within its sample; a suffix goes on where its prefix ends.
    draw_S: which draw (sample-major) a suffix token belongs to.
    joint_index_K: rows of [prefix keys; suffix keys]: for each draw its sample's prefix, then its own suffix.
    prefix, suffix: the attention segments of both calls.
    """

    prefix_index_T: Tensor
    positions_T: Tensor
    positions_S: Tensor
    draw_S: Tensor
    joint_index_K: Tensor
    prefix: Segments
    suffix: Segments

    def to(self, device: torch.device) -> Layout:
        """The same layout with its index tensors on `device`."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def lay_out(
    num_images_B: np.ndarray, num_text_B: np.ndarray, num_actions_B: np.ndarray, num_patches: int, num_draws: int = 1
) -> Layout:
    """The layout of B samples with `num_draws` suffixes each. All index arrays are int64 on the CPU."""
    image_B = num_images_B * num_patches
    prefix_B = image_B + num_text_B
    prefix_D, suffix_D = np.repeat(prefix_B, num_draws), np.repeat(num_actions_B, num_draws)
    num_prefix = int(prefix_B.sum())
    joint = _interleave(np.repeat(_starts(prefix_B), num_draws), prefix_D, num_prefix + _starts(suffix_D), suffix_D)
    in_prefix = _interleave(_starts(image_B), image_B, int(image_B.sum()) + _starts(num_text_B), num_text_B)
    return Layout(
        prefix_index_T=torch.from_numpy(in_prefix),
        positions_T=torch.from_numpy(_ranges(np.zeros_like(prefix_B), prefix_B)),
        positions_S=torch.from_numpy(_ranges(prefix_D, suffix_D)),
        draw_S=torch.from_numpy(np.repeat(np.arange(len(suffix_D)), suffix_D)),
        joint_index_K=torch.from_numpy(joint),
        prefix=Segments.self_attention(tuple(prefix_B.tolist())),
        suffix=Segments(tuple(suffix_D.tolist()), tuple((prefix_D + suffix_D).tolist())),
    )


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Where each of the runs begins when they lie end to end."""
    return np.cumsum(lengths) - lengths


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start+1, … for each run, end to end."""
    return np.repeat(starts - _starts(lengths), lengths) + np.arange(int(lengths.sum()))


def _interleave(a_starts: np.ndarray, a: np.ndarray, b_starts: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows of run a then run b, for each pair of runs."""
    return _ranges(np.stack([a_starts, b_starts], 1).ravel(), np.stack([a, b], 1).ravel())
