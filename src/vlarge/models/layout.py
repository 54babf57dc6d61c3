"""Where each token of a packed batch lies: index arrays made once per batch and used by every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vlarge.models.attention import AUTO, Segments
from vlarge.models.runs import interleave, ranges, repeated, runs


@dataclass(frozen=True)
class Layout:
    """The prefix of a sample is its images' tokens, then its text. Each draw of a sample is one suffix: its actions.

    π0's state token comes between them: it sees the prefix and itself, and every draw of its sample sees it.

    prefix_index_T: rows of [image tokens; text tokens], in prefix order.
    positions_T, positions_B, positions_S: position of each token within its sample: of the prefix, the state token that
    follows it, and the actions after those.
    draw_S: which draw (sample-major) a suffix token belongs to.
    state_index_K: rows of [prefix keys; state keys]: for each sample its prefix, then its state.
    joint_index_K: rows of [prefix keys; state keys; suffix keys]: for each draw its sample's prefix and state, then its
    own actions.
    prefix, state, suffix: the attention segments of the three calls.
    """

    prefix_index_T: Tensor
    positions_T: Tensor
    positions_B: Tensor
    positions_S: Tensor
    draw_S: Tensor
    state_index_K: Tensor
    joint_index_K: Tensor
    prefix: Segments
    state: Segments
    suffix: Segments

    def to(self, device: torch.device) -> Self:
        """The same layout with its index tensors on `device`."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def lay_out(
    num_images_B: np.ndarray,
    num_text_B: np.ndarray,
    num_actions_B: np.ndarray,
    num_patches: int,
    *,
    num_draws: int = 1,
    has_state_token: bool = False,
    attention: str = AUTO,
) -> Layout:
    """The layout of B samples with `num_draws` suffixes each. All index arrays are int64 on the CPU.

    attention: the backend of all three calls.
    """
    image_B = num_images_B * num_patches
    prefix_B, state_B = image_B + num_text_B, np.full(len(image_B), int(has_state_token))
    context_B, suffix_D = prefix_B + state_B, np.repeat(num_actions_B, num_draws)
    prefix, state = runs(prefix_B), runs(state_B, after=prefix_B.sum())
    suffix = runs(suffix_D, after=context_B.sum())
    context_D = np.repeat(context_B, num_draws)
    in_prefix = interleave(runs(image_B), runs(num_text_B, after=image_B.sum()))
    joint = interleave(repeated(prefix, num_draws), repeated(state, num_draws), suffix)
    return Layout(
        prefix_index_T=torch.from_numpy(in_prefix),
        positions_T=torch.from_numpy(ranges(np.zeros_like(prefix_B), prefix_B)),
        positions_B=torch.from_numpy(ranges(prefix_B, state_B)),
        positions_S=torch.from_numpy(ranges(context_D, suffix_D)),
        draw_S=torch.from_numpy(np.repeat(np.arange(len(suffix_D)), suffix_D)),
        state_index_K=torch.from_numpy(interleave(prefix, state)),
        joint_index_K=torch.from_numpy(joint),
        prefix=Segments.self_attention(tuple(prefix_B.tolist()), backend=attention),
        state=Segments(tuple(state_B.tolist()), tuple(context_B.tolist()), backend=attention),
        suffix=Segments(tuple(suffix_D.tolist()), tuple((context_D + suffix_D).tolist()), backend=attention),
    )
