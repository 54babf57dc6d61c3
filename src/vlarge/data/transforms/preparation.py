"""From raw observations and actions to a model's inputs, and from its outputs to raw actions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.manifest import EpisodeTable
from vlarge.data.prompts import DEFAULT, check_prompt, encode_prompts, most_tokens
from vlarge.data.tokens import Tokenizer, tokenizer_from_json
from vlarge.data.transforms.normalise import Normalizer
from vlarge.data.transforms.resize import PADDINGS, resize_with_pad
from vlarge.data.transforms.stages import Chain


@dataclass(frozen=True)
class Preparation:
    """What stands between a dataset or an environment and a model. A checkpoint carries it whole, as JSON.

    image_size: images become [image_size, image_size, 3]. cameras: feature keys, in the order the model sees them.
    chain: what the numbers go through before they are normalised; the normalizers have the dimensions after it.
    prompt: one of `prompts.PROMPTS`, what the text holds. embodiment: the model's number for this robot.
    padding: one of `resize.PADDINGS`, how images become squares.
    repeats_last_action: chunks that reach beyond their episode are filled up with its last action, and learned from.
    """

    image_size: int
    action_horizon: int
    cameras: tuple[str, ...]
    tokenizer: Tokenizer
    state_normalizer: Normalizer
    action_normalizer: Normalizer
    max_text_tokens: int
    chain: Chain = field(default_factory=Chain)
    prompt: str = DEFAULT
    embodiment: int = 0
    padding: str = PADDINGS[0]
    repeats_last_action: bool = False

    def __post_init__(self) -> None:
        check_prompt(self.prompt, self.tokenizer)
        if self.padding not in PADDINGS:
            raise InputError(f"a preparation's padding is {self.padding!r}; known are {', '.join(PADDINGS)}")
        self._check_chain()

    @property
    def state_dim(self) -> int:
        """Dimensions of a raw state."""
        return self.chain.dims_before(self.state_normalizer.dim, self.action_normalizer.dim)[0]

    @property
    def action_dim(self) -> int:
        """Dimensions of a raw action."""
        return self.chain.dims_before(self.state_normalizer.dim, self.action_normalizer.dim)[1]

    def observation(
        self, images: Mapping[str, np.ndarray], state_raw: np.ndarray, task: str
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Resized images (present cameras only, by the model's names), int64 prompt ids, float32 normalised state [A].

        images: camera key -> uint8 [H, W, 3]; other cameras than this preparation's are ignored.
        """
        resized = {
            self.chain.camera(key): resize_with_pad(images[key], self.image_size, self.padding)
            for key in self.cameras
            if key in images
        }
        state_A = self.state_normalizer(self.chain.state(state_raw))
        return resized, self.prompt_ids(task, state_A[None], len(resized))[0], state_A

    def prompt_ids(self, task: str, state_TA: np.ndarray, num_images: int) -> list[np.ndarray]:
        """int64 ids of the prompts of one task and so many images with each of these normalised states."""
        return encode_prompts(self.tokenizer, task, state_TA, self.max_text_tokens, self.prompt, num_images)

    def most_text_tokens(self, task: str) -> int:
        """An upper bound for the prompts of a task, whatever the state."""
        dim, num_images = self.state_normalizer.dim, len(self.cameras)
        return most_tokens(self.tokenizer, task, dim, self.max_text_tokens, self.prompt, num_images)

    def numbers(self, table: EpisodeTable, frames: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each of these frames of an episode: prompt ids, normalised state [A], normalised actions [S, A]."""
        state_TA = self.state_normalizer(self.chain.state(table.state_TA[frames]))
        tasks = [table.tasks[frame] for frame in frames]
        ids: dict[int, np.ndarray] = {}
        for task in dict.fromkeys(tasks):
            rows = [i for i, other in enumerate(tasks) if other == task]
            ids |= dict(zip(rows, self.prompt_ids(task, state_TA[rows], len(self.cameras)), strict=True))
        return [(ids[i], state_TA[i], chunk) for i, chunk in enumerate(self._chunks(table, frames))]

    def num_steps(self, num_left: np.ndarray) -> np.ndarray:
        """int64 [n]: the action steps of samples with so many frames left in their episodes, their own included."""
        if self.repeats_last_action:
            return np.full_like(num_left, self.action_horizon)
        return np.minimum(self.action_horizon, num_left)

    def _chunks(self, table: EpisodeTable, frames: np.ndarray) -> list[np.ndarray]:
        chunks = self._real_chunks(table, frames)
        if not self.repeats_last_action:
            return chunks
        return [np.pad(chunk, ((0, self.action_horizon - len(chunk)), (0, 0)), mode="edge") for chunk in chunks]

    def _real_chunks(self, table: EpisodeTable, frames: np.ndarray) -> list[np.ndarray]:
        starts = frames.tolist()
        if self.chain.uses_state:
            chunks = [table.action_TA[start : start + self.action_horizon] for start in starts]
            return [self.actions(c, table.state_TA[start]) for c, start in zip(chunks, starts, strict=True)]
        first = min(starts)
        action_TA = self.actions(table.action_TA[first : max(starts) + self.action_horizon])
        return [action_TA[start - first : start - first + self.action_horizon] for start in starts]

    def actions(self, raw_SA: np.ndarray, state_raw: np.ndarray | None = None) -> np.ndarray:
        """Raw actions [S, A] to normalised float32 [S, A].

        state_raw: the raw state [A] at the start of the chunk; it must be given where actions are relative to it.
        """
        return self.action_normalizer(self.chain.actions(raw_SA, self._origin(state_raw)))

    def actions_inverse(self, normalised_SA: np.ndarray, state_raw: np.ndarray | None = None) -> np.ndarray:
        """Normalised actions [S, A] to raw float32 [S, A], with the state that `actions` had."""
        actions_SA = self.chain.actions_inverse(self.action_normalizer.inverse(normalised_SA), self._origin(state_raw))
        return actions_SA.astype(np.float32, copy=False)

    def _origin(self, state_raw: np.ndarray | None) -> np.ndarray:
        if state_raw is not None:
            return state_raw
        if self.chain.uses_state:
            raise ValueError("actions are relative to the state at the start of their chunk: give it")
        return np.zeros(self.state_dim, np.float32)

    def check_fit(self, name: str, other: str, cameras: Collection[str], state_dim: int, action_dim: int) -> None:
        """Raise InputError unless `other`, with these cameras and dimensions, has what the policy `name` needs."""
        missing = [key for key in self.cameras if key not in cameras]
        if missing:
            raise InputError(f"{name} looks through {', '.join(missing)}; {other} has {', '.join(cameras) or 'none'}")
        for what, ours, theirs in (("state", self.state_dim, state_dim), ("action", self.action_dim, action_dim)):
            if ours != theirs:
                raise InputError(f"{name} has {ours} {what} dimensions, {other} has {theirs}")

    def look_through(self, names: Mapping[str, str]) -> Preparation:
        """The same, with other cameras in the places of its own.

        names: feature key -> the model's name. Raises InputError when one of the model's cameras has no key.
        """
        keys = {name: key for key, name in names.items()}
        places = [self.chain.camera(key) for key in self.cameras]
        if missing := [name for name in places if name not in keys]:
            raise InputError(f"the model looks through {', '.join(missing)}; name the cameras with data.camera_slots")
        cameras = tuple(keys[name] for name in places)
        return replace(self, cameras=cameras, chain=self.chain.renamed(dict(zip(cameras, places, strict=True))))

    def _check_chain(self) -> None:
        state, action = np.zeros(self.state_dim), np.zeros((1, self.action_dim))
        try:
            dims = len(self.chain.state(state)), self.chain.actions(action, state).shape[1]
        except (IndexError, ValueError) as error:
            raise InputError(f"the stages of a preparation do not fit each other: {error}") from error
        expected = self.state_normalizer.dim, self.action_normalizer.dim
        if dims != expected:
            raise InputError(f"stages give {dims} dimensions of state and action, the statistics have {expected}")

    def to_json(self) -> dict[str, Any]:
        return {
            "image_size": self.image_size,
            "action_horizon": self.action_horizon,
            "cameras": list(self.cameras),
            "tokenizer": self.tokenizer.to_json(),
            "state_normalizer": self.state_normalizer.to_json(),
            "action_normalizer": self.action_normalizer.to_json(),
            "max_text_tokens": self.max_text_tokens,
            "stages": self.chain.to_json(),
            "prompt": self.prompt,
            "embodiment": self.embodiment,
            "padding": self.padding,
            "repeats_last_action": self.repeats_last_action,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preparation:
        """Inverse of `to_json`. Raises InputError naming what is missing or unknown."""
        try:
            preparation = cls(
                image_size=int(data["image_size"]),
                action_horizon=int(data["action_horizon"]),
                cameras=tuple(data["cameras"]),
                tokenizer=tokenizer_from_json(data["tokenizer"]),
                state_normalizer=_normalizer(data, "state_normalizer"),
                action_normalizer=_normalizer(data, "action_normalizer"),
                max_text_tokens=int(data["max_text_tokens"]),
                chain=Chain.from_json(data["stages"]),
                prompt=data["prompt"],
                embodiment=int(data["embodiment"]),
                padding=data["padding"],
                repeats_last_action=bool(data["repeats_last_action"]),
            )
        except KeyError as error:
            raise InputError(f"the stored preparation lacks {error}; was this checkpoint written by vlarge?") from error
        except InputError:
            raise
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError(f"the stored preparation is damaged ({error}); use another checkpoint") from error
        if unknown := data.keys() - preparation.to_json().keys():
            names = ", ".join(sorted(unknown))
            raise InputError(f"the stored preparation has {names}, unknown here; was a newer vlarge its writer?")
        return preparation


def _normalizer(data: dict[str, Any], key: str) -> Normalizer:
    try:
        return Normalizer.from_json(data[key])
    except InputError as error:
        raise InputError(f"the stored {key}: {error}") from error
