"""What a policy's inputs and outputs go through, in training and in action alike, each with its inverse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.manifest import EpisodeTable
from vlarge.data.stats import FeatureStats
from vlarge.data.tokens import Tokenizer, encode_prompt, encode_prompts, tokenizer_from_json


def _affine(method: str, stats: FeatureStats) -> tuple[np.ndarray, np.ndarray, float]:
    # Centre, width and shift of y = (x - centre) / width + shift.
    if method == "quantile":  # openpi's formula; where both quantiles fall on one value, the whole range
        pointlike = np.isclose(stats.q01, stats.q99, rtol=1e-6, atol=1e-9)
        low = np.where(pointlike, stats.min, stats.q01)
        high = np.where(pointlike, stats.max, stats.q99)
        return low, (high - low + 1e-6) / 2, -1.0
    if method == "min_max":
        return stats.min, (stats.max - stats.min) / 2, -1.0
    if method == "mean_std":
        return stats.mean, stats.std + 1e-6, 0.0
    raise InputError(f"data.normalization = {method!r} is unknown; use 'quantile', 'mean_std' or 'min_max'")


class Normalizer:
    """Scales each dimension by its statistics. Not clipped. A constant dimension becomes 0 and comes back constant.

    method: "quantile" (1st and 99th percentile to -1 and 1), "min_max" (to -1 and 1) or "mean_std".
    """

    def __init__(self, method: str, stats: FeatureStats) -> None:
        self.method = method
        self.stats = stats
        centre, width, shift = _affine(method, stats)
        constant = np.isclose(stats.min, stats.max, rtol=1e-6, atol=1e-9)
        self._centre = np.where(constant, stats.min, centre)
        self._shift = np.where(constant, 0.0, shift)
        self._width = np.where(constant, 0.0, width)
        self._inverse_width = np.where(constant, 0.0, 1 / np.where(constant, 1.0, width))

    @property
    def dim(self) -> int:
        return len(self.stats.mean)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Raw [..., dim] to normalised float32 [..., dim]."""
        return ((x - self._centre) * self._inverse_width + self._shift).astype(np.float32)

    def inverse(self, y: np.ndarray) -> np.ndarray:
        """Normalised [..., dim] to raw float32 [..., dim]."""
        return ((y - self._shift) * self._width + self._centre).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "stats": self.stats.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Normalizer:
        return cls(data["method"], FeatureStats.from_json(data["stats"]))


def resize_with_pad(image_HWC: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] to uint8 [size, size, 3]: aspect kept, centred on black, bilinear with antialiasing."""
    height, width = image_HWC.shape[:2]
    if (height, width) == (size, size):
        return image_HWC
    import torch
    from torch.nn.functional import interpolate

    ratio = max(height, width) / size
    new_height, new_width = max(1, int(height / ratio)), max(1, int(width / ratio))
    image_1CHW = torch.from_numpy(np.ascontiguousarray(image_HWC)).permute(2, 0, 1)[None]
    resized = interpolate(image_1CHW, (new_height, new_width), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    canvas = np.zeros((size, size, 3), np.uint8)
    top, left = (size - new_height) // 2, (size - new_width) // 2
    canvas[top : top + new_height, left : left + new_width] = resized.numpy()
    return canvas


@dataclass(frozen=True)
class Preparation:
    """From raw observations and actions to a model's inputs, and back. A checkpoint carries it whole, as JSON.

    image_size: images become [image_size, image_size, 3]. cameras: feature keys, in the order the model sees them.
    """

    image_size: int
    action_horizon: int
    cameras: tuple[str, ...]
    tokenizer: Tokenizer
    state_normalizer: Normalizer
    action_normalizer: Normalizer
    max_text_tokens: int

    def observation(
        self, images: Mapping[str, np.ndarray], state_raw: np.ndarray, task: str
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Resized images (present cameras only), int64 prompt ids, float32 normalised state [A].

        images: camera key -> uint8 [H, W, 3]; other cameras than this preparation's are ignored.
        """
        resized = {key: resize_with_pad(images[key], self.image_size) for key in self.cameras if key in images}
        state_A = self.state_normalizer(state_raw)
        return resized, encode_prompt(self.tokenizer, task, state_A, self.max_text_tokens), state_A

    def numbers(self, table: EpisodeTable, frames: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each of these frames of an episode: prompt ids, normalised state [A], normalised actions [S, A]."""
        state_TA = self.state_normalizer(table.state_TA[frames])
        first, last = int(frames.min()), int(frames.max()) + self.action_horizon
        action_TA = self.actions(table.action_TA[first:last])
        tasks = [table.tasks[frame] for frame in frames]
        ids: list[np.ndarray] = [np.zeros(0)] * len(frames)
        for task in dict.fromkeys(tasks):
            rows = [i for i, other in enumerate(tasks) if other == task]
            prompts = encode_prompts(self.tokenizer, task, state_TA[rows], self.max_text_tokens)
            for i, prompt in zip(rows, prompts, strict=True):
                ids[i] = prompt
        chunks = [action_TA[start : start + self.action_horizon] for start in (frames - first).tolist()]
        return list(zip(ids, state_TA, chunks, strict=True))

    def actions(self, raw_SA: np.ndarray) -> np.ndarray:
        """Raw actions [S, A] to normalised float32 [S, A]."""
        return self.action_normalizer(raw_SA)

    def actions_inverse(self, normalised_SA: np.ndarray) -> np.ndarray:
        """Normalised actions [S, A] to raw float32 [S, A]."""
        return self.action_normalizer.inverse(normalised_SA)

    def check_fit(self, name: str, other: str, cameras: Collection[str], state_dim: int, action_dim: int) -> None:
        """Raise InputError unless `other`, with these cameras and dimensions, has what the policy `name` needs."""
        missing = [key for key in self.cameras if key not in cameras]
        if missing:
            raise InputError(f"{name} looks through {', '.join(missing)}; {other} has {', '.join(cameras) or 'none'}")
        for what, ours, theirs in (
            ("state", self.state_normalizer.dim, state_dim),
            ("action", self.action_normalizer.dim, action_dim),
        ):
            if ours != theirs:
                raise InputError(f"{name} has {ours} {what} dimensions, {other} has {theirs}")

    def to_json(self) -> dict[str, Any]:
        return {
            "image_size": self.image_size,
            "action_horizon": self.action_horizon,
            "cameras": list(self.cameras),
            "tokenizer": self.tokenizer.to_json(),
            "state_normalizer": self.state_normalizer.to_json(),
            "action_normalizer": self.action_normalizer.to_json(),
            "max_text_tokens": self.max_text_tokens,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preparation:
        """Inverse of `to_json`. Raises InputError naming what is missing."""
        try:
            return cls(
                image_size=int(data["image_size"]),
                action_horizon=int(data["action_horizon"]),
                cameras=tuple(data["cameras"]),
                tokenizer=tokenizer_from_json(data["tokenizer"]),
                state_normalizer=Normalizer.from_json(data["state_normalizer"]),
                action_normalizer=Normalizer.from_json(data["action_normalizer"]),
                max_text_tokens=int(data["max_text_tokens"]),
            )
        except KeyError as error:
            raise InputError(f"the stored preparation lacks {error}; was this checkpoint written by vlarge?") from error
        except (TypeError, AttributeError) as error:
            raise InputError(f"the stored preparation is damaged ({error}); use another checkpoint") from error
