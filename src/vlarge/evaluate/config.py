"""The [evaluate] table of a recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """tasks: "<simulator>/<task>" names. episodes: keys per task. workers: processes; the result does not depend on it.

    replan: actions executed of each chunk before the policy looks again (0: the whole chunk).
    step_timeout_s: a worker silent for longer is killed and its episode retried. videos: rollouts recorded per task.
    """

    tasks: tuple[str, ...] = ()
    episodes: int = 10
    seed: int = 0
    workers: int = 2
    replan: int = 0
    videos: int = 1
    step_timeout_s: float = 60.0
    max_attempts: int = 2
    alpha: float = 0.05
