"""Where SmolVLA's tokens lie: as π0's, but that actions see no later ones, and that some layers see no actions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models import layout
from vlarge.models.attention import AUTO, Segments
from vlarge.models.runs import ranges


@dataclass(frozen=True)
class Layout(layout.Layout):
    """What precedes the actions, the context, is [prefix tokens; state tokens]: a state sees its prefix and itself.

    suffix: causal. cross: the actions of all draws of a sample over its context in the order of `state_index_K`.
    steps_S: number of each action in its chunk.
    """

    cross: Segments
    steps_S: Tensor


def lay_out(batch: PackedBatch, image_tokens: int, num_draws: int = 1, attention: str = AUTO) -> Layout:
    """The layout of a batch with `num_draws` suffixes for each sample, on the CPU."""
    shared = layout.lay_out(
        batch.num_images_B,
        batch.num_text_B,
        batch.num_actions_B,
        image_tokens,
        num_draws=num_draws,
        has_state_token=True,
        attention=attention,
    )
    suffix_D = np.repeat(batch.num_actions_B, num_draws)
    own = {
        "suffix": replace(shared.suffix, causal=True),
        "cross": Segments(tuple((num_draws * batch.num_actions_B).tolist()), shared.state.k_lengths, backend=attention),
        "steps_S": torch.from_numpy(ranges(np.zeros_like(suffix_D), suffix_D)),
    }
    return Layout(**vars(shared) | own)
