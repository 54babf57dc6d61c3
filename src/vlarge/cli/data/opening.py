"""Opening a dataset for a person: by the keys it has, and where it takes long, stderr says how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlarge.cli.show import progress

if TYPE_CHECKING:
    from vlarge.data.config import Source
    from vlarge.data.index import Dataset

QUIET_S = 2.0  # most datasets are open by then
BETWEEN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Which features are state and action, for a verb's options."""

    state_key: str = "observation.state"
    """The feature that holds the state."""
    action_key: str = "action"
    """The feature that holds the action."""

    def source_at(self, path: str, **more: Any) -> Source:
        """The dataset at `path` with these keys. more: other settings of a `Source`."""
        from vlarge.data.config import Source

        return Source(path=path, state_key=self.state_key, action_key=self.action_key, **more)


def open_path(path: str, keys: Keys) -> Dataset:
    """Raises InputError, as `open_dataset` does."""
    from vlarge.data.index import open_dataset

    with telling(path) as on_progress:
        return open_dataset(keys.source_at(path), on_progress=on_progress)


@contextmanager
def telling(path: str) -> Iterator[Callable[[int, int], None]]:
    """Yields the `on_progress` of `open_dataset`, for a dataset at `path`."""
    with ExitStack() as stack:
        yield _teller(path, stack)


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
