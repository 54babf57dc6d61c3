"""The few types that pass between rooms: samples, packed batches, policies, environments, episode keys.

Arrays here are numpy; a model turns them into tensors on its own device. Shape suffixes, one legend for the house:

    B  samples in a batch            T  prefix tokens of the batch, one after the other (packed, never padded)
    N  images of the batch           S  suffix tokens (valid action steps) of the batch, packed
    H  height, or attention heads    A  action dimensions        P  patches of one image
    W  width                         D  model width or head size   C  channels
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

# LeRobot's feature names, kept everywhere a user sees one.
IMAGE_PREFIX = "observation.images."
STATE = "observation.state"
ACTION = "action"


class InputError(ValueError):
    """A user's mistake or a user's broken file: one line saying what was wrong, where, and what to do. Exit code 2."""


def setting(default: Any, *, least: float | None = None, below: float | None = None, above: float | None = None) -> Any:
    """A field of a configuration with its range: `least` <= value < `below`, value > `above`. See `check_range`."""
    return field(default=default, metadata={"least": least, "below": below, "above": above})


def check_ranges(table: str, config: Any) -> None:
    """Raise InputError for the first setting of a config that is out of its range."""
    for item in fields(config):
        check_range(f"{table}.{item.name}", getattr(config, item.name), item.metadata)


def check_range(name: str, value: object, bounds: Mapping[str, Any]) -> None:
    """Raise InputError if a number, or one in a tuple, is not finite or outside the bounds of its `setting`."""
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        if not math.isfinite(number):
            raise InputError(f"{name} is {number}; it must be finite")
        for bound, words, holds in (
            ("least", "at least", operator.ge), ("above", "above", operator.gt), ("below", "below", operator.lt),
        ):  # fmt: skip
            limit = bounds.get(bound)
            if limit is not None and not holds(number, limit):
                raise InputError(f"{name} is {number}; it must be {words} {limit}")


class SampleId(NamedTuple):
    """Names one sample for ever: noise, augmentation and logs are keyed by it."""

    dataset: int
    episode: int
    frame: int


def _no_augmentation() -> np.ndarray:
    return np.zeros((0, 7), np.float32)


@dataclass(frozen=True)
class Sample:
    """One training sample, resized and normalised, not yet packed.

    images: camera key -> uint8 [H, W, 3], present cameras only, in the dataset's order
    prompt_ids: int64 token ids of the whole text prefix
    state_A, actions_SA: float32, normalised; actions hold valid steps only (1 to action_horizon)
    embodiment: number of the robot, for models that have weights for each
    augment_N7: float32, how training changes each image (`data.transforms.augment`); no rows where it does not
    """

    id: SampleId
    images: dict[str, np.ndarray]
    prompt_ids: np.ndarray
    state_A: np.ndarray
    actions_SA: np.ndarray
    embodiment: int = 0
    augment_N7: np.ndarray = field(default_factory=_no_augmentation)


@dataclass(frozen=True)
class PackedBatch:
    """Samples laid end to end. Per-sample counts say where one stops; there is no padding and no mask.

    The prefix of sample b is its `num_images_B[b]` images, then its `num_text_B[b]` text tokens; its suffix is its
    `num_actions_B[b]` valid action steps. Action columns beyond `action_dims_B[b]` are zero and enter no loss.
    """

    sample_ids_B3: np.ndarray  # int64
    images_NHWC: np.ndarray  # uint8, all of one size
    num_images_B: np.ndarray  # int64
    text_T: np.ndarray  # int64 token ids
    num_text_B: np.ndarray  # int64
    state_BA: np.ndarray  # float32, normalised
    actions_SA: np.ndarray  # float32, normalised
    num_actions_B: np.ndarray  # int64
    action_dims_B: np.ndarray  # int64
    embodiments_B: np.ndarray  # int64, see `Sample.embodiment`
    augment_N7: np.ndarray = field(default_factory=_no_augmentation)  # float32 [N, 7], or [0, 7]: images stay

    @property
    def num_samples(self) -> int:
        return len(self.num_text_B)

    @property
    def num_valid_values(self) -> int:
        """Action values that enter the loss: known before the forward pass (law M4)."""
        return int((self.num_actions_B * self.action_dims_B).sum())


class EpisodeKey(NamedTuple):
    """Decides everything an episode shows before its first action (law E1)."""

    task: str
    init_id: int
    seed: int


@dataclass(frozen=True)
class EnvSpec:
    """What an environment promises. Compared at connection, hashed into every result.

    task: "<simulator>/<task>"; cameras: feature key -> (height, width), upright RGB; state and action names in order;
    action_low, action_high: of each action.
    horizon: control steps after which an episode is truncated. metric: "success_once" or "success_at_end".
    """

    task: str
    instruction: str
    cameras: dict[str, tuple[int, int]]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_convention: str
    control_hz: float
    horizon: int
    metric: str
    render_quality: str
    reset_mode: str
    simulator: str  # name and version

    @property
    def state_dim(self) -> int:
        return len(self.state_names)

    @property
    def action_dim(self) -> int:
        return len(self.action_names)

    def hash(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Observation:
    """What a policy sees: images by feature key (uint8 [H, W, 3], upright), raw state [A], the instruction."""

    images: dict[str, np.ndarray]
    state: np.ndarray
    task: str


@dataclass(frozen=True)
class Step:
    """What one control step tells the evaluator. Rendering is not part of a step: ask `Env.observe`.

    truncated: the horizon is reached. terminal: the simulator does not go on from this state, a success or not.
    """

    reward: float
    success: bool
    truncated: bool
    terminal: bool = False

    @property
    def is_last(self) -> bool:
        return self.truncated or self.terminal


class Env(Protocol):
    """One simulated environment. An instance serves one task; `reset` may be called with any key of that task.

    What one has besides is used and checked where it is there:

        time_s: float                            simulated seconds since the reset
        snapshot() -> Any; restore(Any) -> None  the whole present state; going on from it, as often as wanted
        expert() -> float32 [A]                  what a scripted expert does now
        marked_image(camera) -> uint8 [H, W, 3]  nothing but a red mark above the middle of what the camera sees and a
                                                 green one to its right, on the same way as every picture
    """

    spec: EnvSpec
    success_at_reset: bool  # whether the present episode began in a state that counts as success

    def reset(self, key: EpisodeKey) -> None:
        """Put the simulator in the state that `key` decides, whatever happened before."""

    def observe(self) -> Observation:
        """Render the present state. Costly: call it only when the policy looks."""

    def step(self, action_A: np.ndarray) -> Step:
        """Apply one raw action (clipped to the spec's range by the environment). Raises InputError on NaN."""

    def close(self) -> None: ...


class Policy(Protocol):
    """Something that acts. Stateless: the chunk queue and the episode live with the caller."""

    name: str
    action_horizon: int

    def check(self, spec: EnvSpec) -> None:
        """Raise InputError, naming the difference, if this policy cannot act in an environment of this spec."""

    def infer(self, observation: Observation, noise_key: Sequence[int]) -> np.ndarray:
        """Raw (un-normalised) actions, float32 [action_horizon, A]; their noise depends on `noise_key` only."""
