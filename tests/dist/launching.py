"""torchrun for tests: started as users start it, watched with deadlines, and never left behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

DEADLINE_S = 240.0  # on a machine that is busy with other things

SETTINGS = """
[data]
clip_frames = 4
window_samples = 12
workers = 0
memory_bytes = 1048576
[model]
image_size = 32
action_horizon = 4
[train]
batch_size = 8
dtype = "fp32"
device = "cpu"
num_threads = 1
warmup_steps = 2
lr_min = 0.001
[track]
tensorboard = false
"""


@contextlib.contextmanager
def torchrun(log: Path, num: int, *command: str, **options: str) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun with `num` processes, in a session of its own that ends with the block; its output is in `log`.

    It ignores SIGUSR2, as docs/health.md lets it under Slurm.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num), "--master-port", port]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*run, *flags, *command], stdout=out, stderr=out, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        )  # fmt: skip
    try:
        yield process
    finally:
        workers = workers_of(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in workers:  # torchrun gives each a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The pids of the processes that torchrun has started and that still run."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"vlarge" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    except OSError:
        return []


def wait_until[T](condition: Callable[[], T], log: Path, timeout_s: float = DEADLINE_S) -> T:
    """What the condition says once it is true; fails with the log after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, log.read_text()[-6000:]
        time.sleep(0.02)
    return value


def finish(process: subprocess.Popen[bytes], log: Path, timeout_s: float = DEADLINE_S) -> None:
    """Wait for the end, which must be a good one."""
    wait_until(lambda: process.poll() is not None, log, timeout_s)
    assert process.returncode == 0, log.read_text()[-6000:]


def lines(path: Path) -> list[dict]:
    """Of a file that somebody may be writing to."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
