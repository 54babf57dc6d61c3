"""The [record] table of a recipe: the demonstrations that a loop starts from."""

from __future__ import annotations

from dataclasses import dataclass


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
