"""What is looked at on this machine: TensorBoard's files, and a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlarge.train.track.tracker import scalars


class TensorboardTracker:
    """Scalars under train/, for TensorBoard. What an earlier start wrote after `done_steps` is drawn no more."""

    def __init__(self, folder: Path, done_steps: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=done_steps + 1 if folder.exists() else None)

    def log(self, record: Mapping[str, Any]) -> None:
        for key, value in scalars(record).items():
            self._writer.add_scalar(f"train/{key}", value, record["step"])

    def close(self, *, failed: bool) -> None:
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

    def close(self, *, failed: bool) -> None:
        self._progress.stop()
