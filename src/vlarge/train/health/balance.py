"""Which rank is slower than the others, and than itself before: the time of each section over all ranks.

Scores are those of NVIDIA's resiliency extension: relative to the best rank of today, and to a rank's own best past,
from 0 to 1, the best. Waiting for others is nobody's slowness, so that `communicate` enters no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlarge.train.health.events import Events
from vlarge.train.health.pulse import BACKWARD, COMMUNICATE, DATA, FORWARD, KEYS, OPTIMIZER
from vlarge.train.parallel.world import World

WORK = (DATA, FORWARD, BACKWARD, OPTIMIZER)
MEASURED = (*WORK, COMMUNICATE)
SLOW_SCORE = 0.7  # below it a rank is named in the log: NVIDIA's threshold
LEAST_S = 1e-3  # of a step; a median below it counts as this, so that nothing is a thousand times nothing
NUM_LISTED = 8  # ranks in an event, the slowest ones


@dataclass(frozen=True)
class Report:
    """Of one window of steps. Rows are ranks; seconds are means over its steps, in the order of `MEASURED`."""

    seconds_RS: np.ndarray
    own_score_R: np.ndarray  # against the rank's own best window so far

    @property
    def score_R(self) -> np.ndarray:
        """Against the best rank: what its work would take where each section goes as fast as anywhere."""
        work_RS = self.seconds_RS[:, : len(WORK)]
        return _ratio(work_RS.min(0).sum(), work_RS.sum(1))

    @property
    def slowest(self) -> int:
        return int(self.score_R.argmin())

    def sections(self) -> dict[str, dict[str, float]]:
        """Of each section the longest rank, its seconds and their ratio to the median."""
        found = {}
        for name, seconds_R in zip(MEASURED, self.seconds_RS.T, strict=True):
            median_s, rank = float(np.median(seconds_R)), int(seconds_R.argmax())
            ratio = max(seconds_R[rank], LEAST_S) / max(median_s, LEAST_S)
            found[name] = {"rank": rank, "max_s": round(float(seconds_R[rank]), 6), "max_over_median": round(ratio, 3)}
        return found

    def text(self) -> str:
        """The slowest rank, and what it is slow at."""
        behind_S = self.seconds_RS[self.slowest] - np.median(self.seconds_RS, 0)
        worst = int(behind_S[: len(WORK)].argmax())
        own_s, median_s = self.seconds_RS[self.slowest, worst], float(np.median(self.seconds_RS[:, worst]))
        return (
            f"rank {self.slowest} is the slowest (score {self.score_R[self.slowest]:.2f}), most of all in"
            f" {MEASURED[worst]}: {own_s:.3f} s a step where the median is {median_s:.3f} s"
        )

    def facts(self) -> dict[str, Any]:
        """For events.jsonl."""
        slow = self.score_R.argsort(kind="stable")[:NUM_LISTED]
        scores = {
            str(rank): {"relative": round(float(self.score_R[rank]), 3), "own": round(float(self.own_score_R[rank]), 3)}
            for rank in slow.tolist()
        }
        return {"kind": "balance", "sections": self.sections(), "scores": scores}


class Balance:
    """Adds up this process's steps; every `every` steps all processes compare. 0: never."""

    def __init__(self, world: World, every: int, events: Events) -> None:
        self._world, self._every, self._events = world, every if world.size > 1 else 0, events
        self._best_S: np.ndarray | None = None
        self._clear()

    def add(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """After each step, with its seconds by key. Returns what belongs into the record of a step that compares."""
        if not self._every:
            return {}
        self._sum_S += [seconds.get(KEYS[name], 0.0) for name in MEASURED]
        self._num_steps += 1
        if self._num_steps < self._every:
            return {}
        report = self._compare(self._sum_S / self._num_steps)
        self._clear()
        if self._world.is_main:
            self._tell(report)
        ratios = {f"{name}_max_over_median": each["max_over_median"] for name, each in report.sections().items()}
        return {"slowest_rank": report.slowest, "slowest_score": float(report.score_R.min()), **ratios}

    def _compare(self, mean_S: np.ndarray) -> Report:
        best_S = mean_S if self._best_S is None else np.minimum(self._best_S, mean_S)
        self._best_S = best_S
        own = _ratio(best_S[: len(WORK)].sum(), mean_S[: len(WORK)].sum())
        rows = gathered(self._world, [*mean_S, float(own)])
        return Report(rows[:, :-1], rows[:, -1])

    def _tell(self, report: Report) -> None:
        slow = report.score_R[report.slowest] < SLOW_SCORE
        self._events.write(report.text(), rank=report.slowest, show=bool(slow), **report.facts())

    def _clear(self) -> None:
        self._sum_S, self._num_steps = np.zeros(len(MEASURED)), 0


def gathered(world: World, numbers: Sequence[float]) -> np.ndarray:
    """[ranks, numbers]: those of every process, in one collective."""
    rows = np.zeros((world.size, len(numbers)))
    rows[world.rank] = numbers
    return np.array(world.sum(*rows.ravel().tolist())).reshape(rows.shape)


def _ratio(part: Any, whole: Any) -> Any:
    # Of times; where there is none, nothing is slow.
    return np.divide(part, whole, out=np.ones_like(np.asarray(whole, float)), where=np.asarray(whole) > 0)
