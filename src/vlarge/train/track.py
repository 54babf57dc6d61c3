"""Where a run's numbers go: steps.jsonl always, TensorBoard if asked, a progress bar when a terminal is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Takes one record per optimizer step; keys are stable (DESIGN §4)."""

    def log(self, record: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonlTracker:
    """One JSON object per step, appended and flushed line by line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def log(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorboardTracker:
    """Scalars under train/, for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, record: Mapping[str, Any]) -> None:
        for key, value in record.items():
            if key != "step":
                self._writer.add_scalar(f"train/{key}", value, record["step"])

    def close(self) -> None:
        self._writer.close()


class ProgressTracker:
    """A bar with loss, rate and remaining time."""

    def __init__(self, total_steps: int, done_steps: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:.0f} samples/s"),
        )
        self._task = self._progress.add_task("train", total=total_steps, completed=done_steps, loss=0.0, rate=0.0)
        self._progress.start()

    def log(self, record: Mapping[str, Any]) -> None:
        self._progress.update(self._task, completed=record["step"], loss=record["loss"], rate=record["samples_per_s"])

    def close(self) -> None:
        self._progress.stop()


@contextmanager
def open_trackers(run_dir: Path, *, tensorboard: bool, total_steps: int, done_steps: int) -> Iterator[list[Tracker]]:
    """The trackers of one run, closed in any case."""
    from rich.console import Console

    trackers: list[Tracker] = [JsonlTracker(run_dir / "steps.jsonl")]
    if tensorboard:
        trackers.append(TensorboardTracker(run_dir / "tensorboard"))
    if Console().is_terminal:
        trackers.append(ProgressTracker(total_steps, done_steps))
    with ExitStack() as stack:
        for tracker in trackers:
            stack.callback(tracker.close)
        yield trackers
