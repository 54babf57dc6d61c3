"""Another process is gone: what a collective says of it, in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from vlarge.contracts import InputError

PLACE = re.compile(r".*gloo/.*\.cc:\d+\] ")  # where in gloo a message comes from, and what torch says before it


class LostPeer(InputError):
    """Another process is gone, or does not come in time."""


@contextmanager
def losing_peers() -> Iterator[None]:
    """Raise LostPeer where a collective ends because another process left, whatever torch raises then."""
    try:
        yield
    except RuntimeError as error:
        if (why := _loss(error)) is None:
            raise
        raise LostPeer(f"another process is gone or too late ({why})") from error


@contextmanager
def told_how_to_go_on(last: Callable[[], Path | None]) -> Iterator[None]:
    """Say of a lost process where the run goes on: from its `last` checkpoint."""
    try:
        with losing_peers():
            yield
    except LostPeer as error:
        checkpoint = last()
        where = f"checkpoint {checkpoint.name}" if checkpoint else "its beginning, since it has no checkpoint yet"
        raise InputError(
            f"{error}; see what became of it. The run goes on from {where}: with --resume, or by itself under torchrun"
            " --max-restarts"
        ) from error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _loss(error: BaseException) -> str | None:
    """What a collective says of a process that left; None for any other error."""
    for each in causes(error):
        for line in str(each).splitlines():
            if isinstance(each, dist.DistError) or PLACE.match(line):
                return PLACE.sub("", line)
    return None
