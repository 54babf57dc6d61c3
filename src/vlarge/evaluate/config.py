"""The [evaluate] table of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from vlarge.contracts import setting


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """tasks: "<simulator>/<task>" names. episodes: keys per task. workers: processes; the result does not depend on it.

    replan: actions executed of each chunk before the policy looks again (0: the whole chunk).
    step_timeout_s: a worker silent for longer is killed and its episode retried. videos: rollouts recorded per task.
    """

    tasks: tuple[str, ...] = ()
    episodes: int = setting(10, least=1)
    seed: int = setting(0, least=0)
    workers: int = setting(2, least=1)
    replan: int = setting(0, least=0)
    videos: int = setting(1, least=0)
    step_timeout_s: float = setting(60.0, above=0)
    max_attempts: int = setting(2, least=1)
    alpha: float = setting(0.05, above=0, below=0.5)
