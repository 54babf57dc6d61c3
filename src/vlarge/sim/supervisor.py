"""Jobs in worker processes that may crash or hang: a lost worker is killed, replaced, and its job reported as lost.

Workers are spawned, so each makes its own simulator and GL context. A worker does one job at a time. It is lost when
its process ends, or when it neither answers nor shows a sign of life (`beat`) for `silence_s` seconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from vlarge.contracts import InputError

Beat = Callable[[], None]
Handler = Callable[[Any, Beat], Any]  # (job, beat) -> result

STARTUP_S = 600.0  # imports, and loading a large checkpoint from a cold disk
MAX_FAILED_STARTS = 3
BEAT_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """How one try at a job ended. error: "" when `result` holds what the handler returned, else one line or more."""

    job: Any
    result: Any
    error: str
    lost: bool  # the worker died or was killed
    worker_pid: int
    wall_s: float


class Supervisor:
    """A pool of `num_workers` processes, each of which calls `setup(argument)` once and its result for every job.

    setup: an importable function; it returns the handler. An InputError from setup or handler ends `run` with the
    same InputError: it is the user's mistake, and another try would meet it again.
    """

    def __init__(self, setup: Callable[[Any], Handler], argument: Any, *, num_workers: int, silence_s: float) -> None:
        if num_workers < 1:
            raise InputError(f"{num_workers} workers asked for; at least one is needed")
        self._setup = setup
        self._argument = argument
        self._num_workers = num_workers
        self._silence_s = silence_s
        self._workers: list[_Worker] = []
        self._unstarted: list[Any] = []  # jobs of workers that died before they were ready
        self._num_failed_starts = 0

    def run(self, next_job: Callable[[], Any | None]) -> Iterator[Outcome]:
        """Outcomes as they come; `next_job` is asked whenever a worker is free, and again after each outcome.

        Ends when it returns None and no job is under way.
        """
        while True:
            self._assign(next_job)
            busy = [worker for worker in self._workers if worker.busy]
            if not busy:
                return
            earliest = min(worker.deadline for worker in busy)
            readable = wait([worker.connection for worker in busy], timeout=max(0.0, earliest - time.monotonic()))
            for worker in busy:
                outcome = self._listen(worker) if worker.connection in readable else self._check_deadline(worker)
                if outcome is not None:
                    yield outcome

    def close(self) -> None:
        """End every worker. May be called more than once."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _assign(self, next_job: Callable[[], Any | None]) -> None:
        idle = [worker for worker in self._workers if not worker.busy]
        while idle or len(self._workers) < self._num_workers:
            job = self._unstarted.pop() if self._unstarted else next_job()
            if job is None:
                return
            if not idle:
                self._workers.append(_Worker(self._setup, self._argument))
                idle.append(self._workers[-1])
            idle.pop().start_job(job, self._silence_s)

    def _listen(self, worker: _Worker) -> Outcome | None:
        try:
            kind, payload = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._lost(worker, "the worker process ended")
        worker.deadline = time.monotonic() + self._silence_s
        if kind == "ready":
            worker.mark_ready()
            self._num_failed_starts = 0
            return None
        if kind == "beat":
            return None
        if kind == "refused":
            raise InputError(payload)
        if kind == "broken":
            raise RuntimeError(f"a worker cannot start:\n{payload}")
        return worker.finish(result=payload if kind == "done" else None, error=payload if kind == "error" else "")

    def _check_deadline(self, worker: _Worker) -> Outcome | None:
        if time.monotonic() < worker.deadline:
            return None
        limit_s = self._silence_s if worker.is_ready else STARTUP_S
        return self._lost(worker, f"the worker was silent for {limit_s:g} s and was killed")

    def _lost(self, worker: _Worker, reason: str) -> Outcome | None:
        worker.kill()
        self._workers.remove(worker)
        reason = f"{reason} (exit code {worker.process.exitcode})"
        if worker.is_ready:
            return worker.finish(result=None, error=reason, lost=True)
        self._num_failed_starts += 1
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            raise RuntimeError(f"workers do not start: {reason}")
        self._unstarted.append(worker.job)
        return None


class _Worker:
    """The supervisor's end of one worker process."""

    def __init__(self, setup: Callable[[Any], Handler], argument: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, setup, argument), daemon=True)
        self.process.start()
        theirs.close()  # so that the worker's death closes the pipe
        self.is_ready = False
        self.busy = False
        self.deadline = 0.0
        self.job: Any = None
        self._start = 0.0

    def start_job(self, job: Any, silence_s: float) -> None:
        self.job, self._start, self.busy = job, time.monotonic(), True
        self.deadline = self._start + (silence_s if self.is_ready else STARTUP_S)
        # A worker that has just died is noticed by the next `recv`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(job)

    def mark_ready(self) -> None:
        self.is_ready = True
        self._start = time.monotonic()  # start-up is no part of the job's time

    def finish(self, *, result: Any, error: str, lost: bool = False) -> Outcome:
        self.busy = False
        wall_s = time.monotonic() - self._start
        return Outcome(self.job, result, error, lost, worker_pid=self.process.pid or 0, wall_s=wall_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _work(connection: Connection, setup: Callable[[Any], Handler], argument: Any) -> None:
    """A worker's life: set up, then one job after another until the supervisor goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            handler = setup(argument)
        except InputError as error:
            connection.send(("refused", str(error)))
        except Exception:
            connection.send(("broken", traceback.format_exc()))
        else:
            connection.send(("ready", None))
            beat = _make_beat(connection)
            while True:
                connection.send(_answer(handler, connection.recv(), beat))


def _answer(handler: Handler, job: Any, beat: Beat) -> tuple[str, Any]:
    try:
        return "done", handler(job, beat)
    except InputError as error:
        return "refused", str(error)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:
        return "error", traceback.format_exc()


def _make_beat(connection: Connection) -> Beat:
    last = time.monotonic()

    def beat() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > BEAT_INTERVAL_S:
            connection.send(("beat", None))
            last = now

    return beat
