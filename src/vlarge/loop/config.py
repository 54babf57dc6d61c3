"""The [loop] and [record] tables of a recipe: how long a loop may take, the demonstrations that it starts from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """max_time_s: above 0, training gets what recording has left of it, less what judging is expected to take."""

    max_time_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """episodes: demonstrations per task. tail_steps: steps kept after the first success.

    action_noise: standard deviation of noise on executed actions, each draw held for noise_hold_steps; the recorded
    action stays the expert's own.
    """

    episodes: int = 30
    tail_steps: int = 8
    action_noise: float = 0.3
    noise_hold_steps: int = 1
