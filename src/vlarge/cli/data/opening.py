"""Opening a dataset for a person: where it takes long, stderr says how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vlarge.cli.show import progress

if TYPE_CHECKING:
    from vlarge.data.index import Dataset

QUIET_S = 2.0  # most datasets are open by then
BETWEEN_S = 1.0


def open_path(path: str) -> Dataset:
    """Raises InputError, as `open_dataset` does."""
    from vlarge.data.config import Source
    from vlarge.data.index import open_dataset

    with ExitStack() as stack:
        return open_dataset(Source(path=path), on_progress=_teller(path, stack))


def _teller(path: str, stack: ExitStack) -> Callable[[int, int], None]:
    tell: Callable[[str, int], None] | None = None
    told, due_s = 0, time.monotonic() + QUIET_S

    def on_progress(done: int, total: int) -> None:
        nonlocal tell, told, due_s
        if time.monotonic() < due_s:
            return
        tell = tell or stack.enter_context(progress("checking files", total))
        tell(f"{path}: {done} of {total} files checked", done - told)
        told, due_s = done, time.monotonic() + BETWEEN_S

    return on_progress
