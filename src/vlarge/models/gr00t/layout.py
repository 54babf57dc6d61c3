"""Where each token of a packed batch lies in GR00T: index arrays made once per batch and used by every layer.

Shape letters beside the house's: V features that the head sees, Q all tokens of all draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlarge.contracts import InputError, PackedBatch
from vlarge.models.attention import Segments
from vlarge.models.gr00t.config import GrootConfig
from vlarge.models.gr00t.embodiment import Groups
from vlarge.models.runs import interleave, ranges, repeated, runs, starts


@dataclass(frozen=True)
class GrootLayout:
    """A draw's tokens are its sample's state, the model's own tokens, then the noised actions; draws are sample-major.

    text_index_T: rows of [image tokens; text tokens without the markers], as the language model reads them.
    positions_T: position of each within its sample.
    filled_index_V: rows of [features; the feature of a pad], where `GrootConfig.attend_padding` asks for it.
    draw_index_Q: rows of [states; the model's own tokens; actions], as the denoiser reads them.
    draw_Q, draw_S: which draw each token, each action belongs to. actions_S: which of the tokens are actions.
    step_S: position of each action in its chunk.
    text, features: self-attention of the language model, and of the head over its features.
    cross, cross_actions: of all draws of a sample, or only of their actions, over the sample's features.
    own, own_actions: of each draw, or only of its actions, over all of the draw's tokens.
    states, actions: the robots of the samples, and of the actions.
    """

    text_index_T: Tensor
    positions_T: Tensor
    filled_index_V: Tensor | None
    draw_index_Q: Tensor
    draw_Q: Tensor
    draw_S: Tensor
    actions_S: Tensor
    step_S: Tensor
    text: Segments
    features: Segments
    cross: Segments
    cross_actions: Segments
    own: Segments
    own_actions: Segments
    states: Groups
    actions: Groups

    def to(self, device: torch.device) -> GrootLayout:
        """The same layout with its index tensors on `device`."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor | Groups)}
        return replace(self, **moved)


def lay_out(c: GrootConfig, batch: PackedBatch, num_draws: int, attention: str) -> GrootLayout:
    """The layout of a batch with `num_draws` draws for each sample. All index arrays are int64 on the CPU.

    attention: the backend of all calls. Raises InputError for a text with more image markers than images.
    """
    text_B = text_lengths(c, batch)
    features_B = feature_lengths(c, text_B)
    return GrootLayout(
        text_index_T=torch.from_numpy(_text_index(c, batch)),
        positions_T=torch.from_numpy(ranges(np.zeros_like(text_B), text_B)),
        filled_index_V=torch.from_numpy(_filled_index(text_B, features_B)) if c.attend_padding else None,
        text=Segments.self_attention(tuple(text_B.tolist()), causal=True, backend=attention),
        features=Segments.self_attention(tuple(features_B.tolist()), backend=attention),
        states=Groups.of(batch.embodiments_B),
        **_draws(c, batch, num_draws, features_B, attention),
    )


def text_lengths(c: GrootConfig, batch: PackedBatch) -> np.ndarray:
    """Tokens of each sample that the language model reads: each marker is replaced by its image's."""
    return batch.num_images_B * c.image_tokens + batch.num_text_B - _markers(c, batch)


def feature_lengths(c: GrootConfig, text_B: np.ndarray) -> np.ndarray:
    """Features of each sample that the head sees."""
    return np.full_like(text_B, text_B.max(initial=0)) if c.attend_padding else text_B


def _markers(c: GrootConfig, batch: PackedBatch) -> np.ndarray:
    # How many there are in each sample's text.
    before = np.concatenate(([0], np.cumsum(batch.text_T == c.image_token)))
    first = starts(batch.num_text_B)
    return before[first + batch.num_text_B] - before[first]


def _text_index(c: GrootConfig, batch: PackedBatch) -> np.ndarray:
    # A run of rows for each text token: itself, or the image in its place; before them, images that have no marker.
    patches, is_marker = c.image_tokens, batch.text_T == c.image_token
    unmarked_B = batch.num_images_B - _markers(c, batch)
    if (unmarked_B < 0).any():
        bad = int(np.argmin(unmarked_B))
        raise InputError(
            f"the text of sample {tuple(batch.sample_ids_B3[bad].tolist())} (dataset, episode, frame) has"
            f" {batch.num_images_B[bad] - unmarked_B[bad]} image markers for {batch.num_images_B[bad]} images:"
            f" leave token {c.image_token} out of the task"
        )
    image_B, word_B = starts(batch.num_images_B), starts(batch.num_text_B)
    # The image of a marker: as many as there are unmarked ones up to here, and markers before.
    image_T = np.repeat(np.cumsum(unmarked_B), batch.num_text_B) + np.cumsum(is_marker) - 1
    word_T = len(batch.images_NHWC) * patches + np.cumsum(~is_marker) - 1
    first = np.insert(np.where(is_marker, image_T * patches, word_T), word_B, image_B * patches)
    lengths = np.insert(np.where(is_marker, patches, 1), word_B, unmarked_B * patches)
    return ranges(first, lengths)


def _filled_index(text_B: np.ndarray, features_B: np.ndarray) -> np.ndarray:
    # Each sample's features behind as many pads as are missing to the longest.
    pads = np.full(int(features_B.sum()), text_B.sum())
    pads[ranges(np.cumsum(features_B) - text_B, text_B)] = np.arange(text_B.sum())
    return pads


def _draws(
    c: GrootConfig, batch: PackedBatch, num_draws: int, features_B: np.ndarray, attention: str
) -> dict[str, Any]:
    # What the denoiser needs.
    actions_D = np.repeat(batch.num_actions_B, num_draws)
    tokens_D = c.draw_tokens + actions_D
    sample = np.arange(batch.num_samples), np.ones(batch.num_samples, np.int64)
    added = np.full_like(actions_D, batch.num_samples), np.full_like(actions_D, c.future_tokens)
    actions = runs(actions_D, after=batch.num_samples + c.future_tokens)
    draws = np.arange(len(actions_D))
    features = tuple(features_B.tolist())
    of_sample_B, actions_B = (x.reshape(-1, num_draws).sum(1) for x in (tokens_D, actions_D))

    def segments(queries: np.ndarray, keys: tuple[int, ...]) -> Segments:
        return Segments(tuple(queries.tolist()), keys, backend=attention)

    tokens = tuple(tokens_D.tolist())
    return {
        "draw_index_Q": torch.from_numpy(interleave(repeated(sample, num_draws), added, actions)),
        "draw_Q": torch.from_numpy(np.repeat(draws, tokens_D)),
        "draw_S": torch.from_numpy(np.repeat(draws, actions_D)),
        "actions_S": torch.from_numpy(ranges(starts(tokens_D) + c.draw_tokens, actions_D)),
        "step_S": torch.from_numpy(ranges(np.zeros_like(actions_D), actions_D)),
        "cross": segments(of_sample_B, features),
        "cross_actions": segments(actions_B, features),
        "own": segments(tokens_D, tokens),
        "own_actions": segments(actions_D, tokens),
        "actions": Groups.of(np.repeat(batch.embodiments_B, num_draws * batch.num_actions_B)),
    }
