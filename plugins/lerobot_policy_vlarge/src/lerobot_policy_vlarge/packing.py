"""LeRobot's padded batches as vlarge's samples: what is padding there does not exist here (law M2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlarge.contracts import ACTION, STATE, InputError, Sample, SampleId
from vlarge.data.prompts import encode_prompt
from vlarge.data.tokens import Tokenizer
from vlarge.data.transforms.resize import resize_with_pad

Batch = Mapping[str, Any]  # LeRobot's: tensors by feature key, and the tasks


@dataclass(frozen=True)
class Packing:
    """What a sample of one robot holds. cameras: feature keys, in the order the model sees them.

    action_dim: real dimensions. prompt: one of `prompts.PROMPTS`. embodiment: the model's number for this robot.
    padding: one of `resize.PADDINGS`.
    """

    cameras: tuple[str, ...]
    image_size: int
    action_horizon: int
    action_dim: int
    prompt: str
    max_text_tokens: int
    embodiment: int
    padding: str

    def demonstrated(self, batch: Batch, tokenizer: Tokenizer) -> list[Sample]:
        """Samples to learn from, each with its valid action steps."""
        actions_BSA = _numbers(batch[ACTION])[..., : self.action_dim]
        valid_BS = np.ones(actions_BSA.shape[:2], bool)
        if f"{ACTION}_is_pad" in batch:
            valid_BS = ~batch[f"{ACTION}_is_pad"].cpu().numpy()
        chunks = [actions_SA[valid_S] for actions_SA, valid_S in zip(actions_BSA, valid_BS, strict=True)]
        return self._samples(batch, tokenizer, chunks)

    def observed(self, batch: Batch, tokenizer: Tokenizer) -> list[Sample]:
        """Samples to act on, each with a whole chunk of blank actions."""
        blank_SA = np.zeros((self.action_horizon, self.action_dim), np.float32)
        return self._samples(batch, tokenizer, [blank_SA] * len(batch[STATE]))

    def _samples(self, batch: Batch, tokenizer: Tokenizer, chunks: Sequence[np.ndarray]) -> list[Sample]:
        if "task" not in batch:
            raise InputError("the batch names no task; give every frame or environment one")
        state_BA, pictures = _numbers(batch[STATE]), {key: self._pictures(batch, key) for key in self.cameras}
        samples = []
        for i, (task, chunk_SA) in enumerate(zip(batch["task"], chunks, strict=True)):
            images = {key: own[i] for key, own in pictures.items() if i in own}
            ids = encode_prompt(tokenizer, task, state_BA[i], self.max_text_tokens, self.prompt, len(images))
            place = SampleId(0, 0, i)  # in LeRobot's batch, which packing reorders
            samples.append(Sample(place, images, ids, state_BA[i], chunk_SA, self.embodiment))
        return samples

    def _pictures(self, batch: Batch, key: str) -> dict[int, np.ndarray]:
        # uint8 [size, size, 3] of the samples that have this camera.
        if key not in batch:
            return {}
        pixels_BHWC = _bytes(batch[key]).permute(0, 2, 3, 1).cpu().numpy()
        present_B = batch.get(f"{key}_padding_mask", torch.ones(len(pixels_BHWC)))
        return {
            i: resize_with_pad(pixels_BHWC[i], self.image_size, self.padding)
            for i in present_B.nonzero()[:, 0].tolist()
        }


def _numbers(values: Tensor) -> np.ndarray:
    return values.float().cpu().numpy()


def _bytes(pixels: Tensor) -> Tensor:
    # LeRobot divides by 255.
    return pixels if pixels.dtype == torch.uint8 else (pixels.float() * 255).round().clamp(0, 255).byte()
