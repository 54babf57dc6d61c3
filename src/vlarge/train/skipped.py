"""Updates that did not happen because the gradients were not finite: counted, never saved, and too many end the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from vlarge.contracts import InputError

MOST_IN_A_ROW = 10


class Skipped:
    """total: of the whole run, which is saved with it. in_a_row: up to the last step whose norm was read."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.total = self.in_a_row = self._last_step = 0

    def count(self, norm: float, step: int) -> None:
        """norm: of the whole gradient of a step, which left the weights alone where it is not finite."""
        if math.isfinite(norm):
            self.in_a_row = 0
            return
        self.total, self.in_a_row, self._last_step = self.total + 1, self.in_a_row + 1, step
        if self.in_a_row == 1:
            self._tell(f"step {step} is skipped, its gradients are not finite; nothing is saved until they are again")

    @property
    def are_too_many(self) -> bool:
        return self.in_a_row >= MOST_IN_A_ROW

    def error(self, last: Path | None) -> InputError:
        """last: the newest checkpoint, which is from before the first step that was skipped."""
        steps = (
            f"{self.in_a_row} steps up to step {self._last_step}" if self.in_a_row > 1 else f"step {self._last_step}"
        )
        how = f"resume from {last}, the last before them," if last else "start again"
        older = "; if that is not enough, remove it and resume from the one before" if last else ""
        return InputError(f"the gradients of {steps} were not finite: {how} with a lower train.lr{older}")
