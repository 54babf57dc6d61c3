"""The command line with faults in it: `python faults.py FOLDER KIND:RANK:STEP,… VERB …`, for tests to start.

A fault begins when the rank has done so many steps, leaves FOLDER/KIND.begun with the process's id, and lasts until the
test makes FOLDER/KIND.over. data: a file cannot be read; compute: a forward pass does not end; silent: the process
stops altogether, until it is sent SIGCONT.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from vlarge.cli.main import main
from vlarge.data.index import Dataset
from vlarge.train import engine, trainer

LONGEST_S = 120.0  # a fault that the test forgot


def hold(folder: Path, kind: str) -> None:
    (folder / f"{kind}.begun").write_text(str(os.getpid()))
    if kind == "silent":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    deadline_s = time.monotonic() + LONGEST_S
    while not (folder / f"{kind}.over").exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)


def inject(folder: Path, kind: str, first_step: int) -> None:
    runs: list[trainer.Trainer] = []
    done = False

    def before(work: Callable) -> Callable:
        def faulty(*args: object, **kwargs: object) -> object:
            nonlocal done
            if not done and runs and runs[0].step >= first_step:
                done = True
                hold(folder, kind)
            return work(*args, **kwargs)

        return faulty

    train = trainer.Trainer.train

    def remember(self: trainer.Trainer) -> Path:
        runs.append(self)
        return train(self)

    trainer.Trainer.train = remember
    if kind == "data":
        Dataset.fill_frames = before(Dataset.fill_frames)
    else:
        engine.Engine._loss = before(engine.Engine._loss)


if __name__ == "__main__":
    for fault in sys.argv[2].split(","):
        kind, rank, step = fault.split(":")
        if rank == os.environ["RANK"]:
            inject(Path(sys.argv[1]), kind, int(step))
    sys.exit(main(sys.argv[3:]))
