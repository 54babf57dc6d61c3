"""The [loop] and [record] tables of a recipe: how long a loop may take, the demonstrations that it starts from."""

from __future__ import annotations

from dataclasses import dataclass

from vlarge.contracts import setting


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """max_time_s: above 0, training gets what recording has left of it, less what judging is expected to take."""

    max_time_s: float = setting(0.0, least=0)


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """episodes: demonstrations per task. tail_steps: steps kept after the first success.

    action_noise: standard deviation of noise on executed actions, each draw held for noise_hold_steps; the recorded
    action stays the expert's own.
    """

    episodes: int = setting(30, least=1)
    tail_steps: int = setting(8, least=0)
    action_noise: float = setting(0.3, least=0)
    noise_hold_steps: int = setting(1, least=1)
