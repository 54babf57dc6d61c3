"""Which errors are the machine's or a file's, and one line that says what happened."""

from __future__ import annotations

import errno
import os

from safetensors import SafetensorError

from vlarge.contracts import InputError
from vlarge.train.health.lost import causes

FULL = (errno.ENOSPC, errno.EDQUOT)


def reason_of(error: BaseException) -> str | None:
    """One line about the user's input, a file or a disk; None for a mistake of ours.

    torch.save and safetensors hide a failed write in errors of their own.
    """
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError | RuntimeError):
        return next((_of_system(each) for each in causes(error) if isinstance(each, OSError)), None)
    if isinstance(error, SafetensorError):
        return _line("the disk is full" if os.strerror(errno.ENOSPC) in str(error) else str(error))
    return None


def _of_system(error: OSError) -> str:
    if error.errno in FULL:
        return "the disk is full"
    return _line(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _line(text: str) -> str:
    return text.strip().splitlines()[0]
