"""Samples of a batch laid end to end: no padding, no mask, one count per sample and part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlarge.contracts import PackedBatch, Sample


def _layout_key(sample: Sample) -> tuple[int, int, int]:
    return len(sample.images), len(sample.prompt_ids), len(sample.actions_SA)


def _concatenate(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)


def _widen(rows: Sequence[np.ndarray]) -> np.ndarray:
    # Rows [n, A] of different widths under each other, zeros to the right.
    widest = max((r.shape[1] for r in rows), default=0)
    result = np.zeros((sum(map(len, rows)), widest), np.float32)
    start = 0
    for r in rows:
        result[start : start + len(r), : r.shape[1]] = r
        start += len(r)
    return result


def pack(samples: Sequence[Sample]) -> PackedBatch:
    """The samples as one batch, sorted by (images, text length, action steps) so that equal segments are neighbours.

    Samples of equal shape keep their order. No sample at all gives an empty batch. Images must share one size.
    """
    ordered = sorted(samples, key=_layout_key)
    images = [image for s in ordered for image in s.images.values()]
    return PackedBatch(
        sample_ids_B3=np.array([s.id for s in ordered], np.int64).reshape(-1, 3),
        images_NHWC=np.stack(images) if images else np.zeros((0, 0, 0, 3), np.uint8),
        num_images_B=np.array([len(s.images) for s in ordered], np.int64),
        text_T=_concatenate([s.prompt_ids for s in ordered], np.int64),
        num_text_B=np.array([len(s.prompt_ids) for s in ordered], np.int64),
        state_BA=_widen([s.state_A[None] for s in ordered]),
        actions_SA=_widen([s.actions_SA for s in ordered]),
        num_actions_B=np.array([len(s.actions_SA) for s in ordered], np.int64),
        action_dims_B=np.array([s.actions_SA.shape[1] for s in ordered], np.int64),
    )
