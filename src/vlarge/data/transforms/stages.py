"""Conventions of a dataset and of a robot as a chain of stages: applied in order, undone in reverse.

A checkpoint carries the chain as JSON, so a policy acts in the units and dimensions of the data it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from vlarge.contracts import InputError


@dataclass(frozen=True)
class Stage:
    """Changes nothing. Arrays are [..., dimensions]; `state_A` is the state as this stage receives it."""

    uses_state: ClassVar[bool] = False  # whether actions depend on the state

    def dims_before(self, state_dim: int, action_dim: int) -> tuple[int, int]:
        """Dimensions of state and action before this stage, from those after it."""
        return state_dim, action_dim

    def camera(self, key: str) -> str:
        return key

    def state(self, state_A: np.ndarray) -> np.ndarray:
        return state_A

    def actions(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return actions_SA

    def actions_inverse(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return actions_SA


@dataclass(frozen=True)
class Rename(Stage):
    """Names cameras as the model knows them: (feature key, the model's name) of each that has another name."""

    cameras: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        keys, names = zip(*self.cameras, strict=True) if self.cameras else ((), ())
        if len(set(keys)) < len(keys) or len(set(names)) < len(names):
            raise InputError(f"the cameras {', '.join(keys)} cannot be {', '.join(names)}: a name stands twice")

    def camera(self, key: str) -> str:
        return dict(self.cameras).get(key, key)


@dataclass(frozen=True)
class Select(Stage):
    """Keeps some dimensions of state and action, in the order given.

    state_dim: what the state has before. rest: one value for each action dimension before; going back, an action
    dimension that was not kept gets it.
    """

    state_dim: int
    state_dims: tuple[int, ...]
    action_dims: tuple[int, ...]
    rest: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_dims("state", self.state_dims, self.state_dim)
        _check_dims("action", self.action_dims, len(self.rest))

    def dims_before(self, state_dim: int, action_dim: int) -> tuple[int, int]:
        return self.state_dim, len(self.rest)

    def state(self, state_A: np.ndarray) -> np.ndarray:
        return state_A[..., list(self.state_dims)]

    def actions(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return actions_SA[..., list(self.action_dims)]

    def actions_inverse(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        whole = np.broadcast_to(self.rest, (*actions_SA.shape[:-1], len(self.rest))).astype(actions_SA.dtype)
        whole[..., list(self.action_dims)] = actions_SA
        return whole


@dataclass(frozen=True)
class Rescale(Stage):
    """value * scale + offset in each dimension: the sign and zero of a joint, which way a gripper opens."""

    state_scale: tuple[float, ...]
    state_offset: tuple[float, ...]
    action_scale: tuple[float, ...]
    action_offset: tuple[float, ...]

    def __post_init__(self) -> None:
        for what, scale, offset in (
            ("state", self.state_scale, self.state_offset),
            ("action", self.action_scale, self.action_offset),
        ):
            if len(scale) != len(offset):
                raise InputError(f"{len(scale)} {what} scales, {len(offset)} {what} offsets; give one of each")
            if not all(math.isfinite(x) for x in (*scale, *offset)) or 0 in scale:
                raise InputError(f"{what} scales {scale}, offsets {offset}: they must be finite and no scale may be 0")

    def state(self, state_A: np.ndarray) -> np.ndarray:
        return state_A * self.state_scale + self.state_offset

    def actions(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return actions_SA * self.action_scale + self.action_offset

    def actions_inverse(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return (actions_SA - self.action_offset) / self.action_scale


@dataclass(frozen=True)
class Relative(Stage):
    """In these dimensions an action is a target that becomes its distance from the state at the start of the chunk.

    Action dimension i is measured from state dimension i (openpi's DeltaActions).
    """

    dims: tuple[int, ...]
    uses_state: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_dims("relative", self.dims)

    def actions(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return self._moved(actions_SA, -state_A)

    def actions_inverse(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        return self._moved(actions_SA, state_A)

    def _moved(self, actions_SA: np.ndarray, origin_A: np.ndarray) -> np.ndarray:
        dims = list(self.dims)
        result = actions_SA.copy()
        result[..., dims] += origin_A[..., dims]
        return result


KINDS: dict[str, type[Stage]] = {
    "rename": Rename,
    "select": Select,
    "rescale": Rescale,
    "relative": Relative,
}


@dataclass(frozen=True)
class Chain:
    """Stages, applied in order. Without any, nothing changes."""

    stages: tuple[Stage, ...] = ()

    @property
    def uses_state(self) -> bool:
        return any(stage.uses_state for stage in self.stages)

    @property
    def keeps_numbers(self) -> bool:
        """Whether state and action come out as they went in."""
        return all(isinstance(stage, Rename) for stage in self.stages)

    def dims_before(self, state_dim: int, action_dim: int) -> tuple[int, int]:
        """Dimensions of raw state and action, from those after the last stage."""
        for stage in reversed(self.stages):
            state_dim, action_dim = stage.dims_before(state_dim, action_dim)
        return state_dim, action_dim

    def camera(self, key: str) -> str:
        """The model's name of the camera that a dataset or an environment calls `key`."""
        for stage in self.stages:
            key = stage.camera(key)
        return key

    def state(self, state_A: np.ndarray) -> np.ndarray:
        return self._states(state_A)[-1]

    def actions(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        """Raw actions [S, A] with the raw state [A] at their start, or row by row with a state for each [S, A]."""
        for stage, state in zip(self.stages, self._states(state_A), strict=False):
            actions_SA = stage.actions(actions_SA, state)
        return actions_SA

    def actions_inverse(self, actions_SA: np.ndarray, state_A: np.ndarray) -> np.ndarray:
        """What `actions` gave, and the same raw state, to raw actions."""
        states = self._states(state_A)[:-1]
        for stage, state in zip(reversed(self.stages), reversed(states), strict=True):
            actions_SA = stage.actions_inverse(actions_SA, state)
        return actions_SA

    def action_rows(self, state_TA: np.ndarray, action_TA: np.ndarray, horizon: int) -> Iterator[np.ndarray]:
        """Rows [n, A] of one episode, for statistics: every action once, or, where actions depend on the state that
        their chunk starts from, once for each of the up to `horizon` chunks that it is in."""
        for k in range(min(horizon, len(action_TA)) if self.uses_state else 1):
            yield self.actions(action_TA[k:], state_TA[: len(state_TA) - k])

    def renamed(self, names: Mapping[str, str]) -> Chain:
        """The same chain with these names of cameras: feature key -> the model's name."""
        others = tuple(stage for stage in self.stages if not isinstance(stage, Rename))
        return Chain((Rename(tuple(names.items())), *others))

    def to_json(self) -> list[dict[str, Any]]:
        names = {kind: name for name, kind in KINDS.items()}
        return [{"stage": names[type(stage)], **asdict(stage)} for stage in self.stages]

    @classmethod
    def from_json(cls, data: Sequence[dict[str, Any]]) -> Chain:
        """Inverse of `to_json`. Raises InputError for a stage or a field that is unknown or missing."""
        return cls(tuple(_stage_from_json(item) for item in data))

    def _states(self, state_A: np.ndarray) -> list[np.ndarray]:
        # The state before each stage, and after the last.
        states = [state_A]
        for stage in self.stages:
            states.append(stage.state(states[-1]))
        return states


def _stage_from_json(data: dict[str, Any]) -> Stage:
    kind = KINDS.get(data.get("stage", ""))
    if kind is None:
        raise InputError(
            f"the stored preparation has an unknown stage {data.get('stage')!r}; known: {', '.join(KINDS)}"
        )
    names = {item.name for item in fields(kind)}
    if odd := names ^ (data.keys() - {"stage"}):
        what = "lacks" if odd & names else "has the unknown field"
        raise InputError(f"the stored stage {data['stage']!r} {what} {', '.join(sorted(odd & names or odd))}")
    return kind(**{name: _as_tuple(data[name]) for name in names})


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value


def _check_dims(what: str, dims: tuple[int, ...], num_dims: float = math.inf) -> None:
    if len(set(dims)) < len(dims) or not all(type(dim) is int and 0 <= dim < num_dims for dim in dims):
        raise InputError(f"{what} dimensions {dims} must be different whole numbers, at least 0 and below {num_dims}")
