"""How the processes of a data service begin, with a feed on standard input, and end, never later than their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def start(module: str, arguments: Sequence[int], files: Sequence[int], feed: str) -> subprocess.Popen[bytes]:
    """`python -m MODULE PARENT ARGUMENTS` with these descriptors open, and `feed` on its standard input."""
    command = [sys.executable, "-m", module, str(os.getpid()), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=files)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it tells what is wrong, or its exit code does
        pipe.write(feed.encode())
    return process


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends, and leave signals to the parent.

    parent: its pid, so that one which ended before this call is noticed too.

    A terminal, torchrun and Slurm signal the whole group, and the trainer needs its data until it has saved.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def how_ended(code: int) -> str:
    """An exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
