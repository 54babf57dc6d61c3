"""Being asked to stop: by a person, by torchrun, or by Slurm before it takes the machine away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

# Slurm sends SIGUSR2 to all processes of a step with --signal=USR2@120, so many seconds before it ends them.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """The list fills when Ctrl-C, SIGTERM or SIGUSR2 asks to stop; a second Ctrl-C interrupts at once.

    A process stops when any process has been asked: they have to agree on the step, in a collective.
    """
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        again = "; Ctrl-C again leaves at once" if number == signal.SIGINT else ""
        # Not print: it may be at work already when the signal comes.
        os.write(2, f"{signal.Signals(number).name}: stopping once this step is done and saved{again}\n".encode())
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
