"""The trackers of one process of a run, and everything else that is written about it, opened and closed together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vlarge.train.track.advice import AdviceTracker
from vlarge.train.track.jsonl import JsonlTracker
from vlarge.train.track.local import ProgressTracker, TensorboardTracker
from vlarge.train.track.mlflow import MlflowTracker
from vlarge.train.track.prometheus import PrometheusTracker
from vlarge.train.track.provenance import record_start
from vlarge.train.track.step_line import StepLineTracker
from vlarge.train.track.timeline import Timeline
from vlarge.train.track.tracker import Note, Tracked, Tracker, Trackers
from vlarge.train.track.wandb import WandbTracker

Log = Callable[[Mapping[str, Any]], None]


@contextmanager
def tracked(run: Tracked, timeline: Timeline, note: Note) -> Iterator[Log]:
    """Takes the record of every step inside the block. Only the main process, rank 0, writes to the run directory.

    Raises InputError before the block where a service cannot be written to or a port is taken.
    """
    with _opened(run, timeline, note) as trackers:
        try:
            yield lambda record: trackers.log(timeline.stepped(record))
        finally:
            goodput = timeline.close()
    if run.rank == 0:
        print(goodput, file=sys.stderr)


@contextmanager
def _opened(run: Tracked, timeline: Timeline, note: Note) -> Iterator[Trackers]:
    trackers, failed = Trackers(note), True
    try:
        _open(trackers, run, timeline, note)
        yield trackers
        failed = False
    finally:
        trackers.close(failed=failed)


def _open(trackers: Trackers, run: Tracked, timeline: Timeline, note: Note) -> None:
    # What can be refused comes first: a run that does not begin leaves no steps.jsonl.
    track, train = run.recipe.track, run.recipe.train
    if track.prometheus_port:
        port = track.prometheus_port + run.local_rank
        trackers.add(PrometheusTracker(port, run.name, run.rank, train.batch_size))
    if run.rank:
        return
    if track.wandb:
        trackers.add(WandbTracker(run))
    if track.mlflow:
        trackers.add(MlflowTracker(run))
    timeline.open(run.folder, run.done_steps)
    record_start(run)
    if track.tensorboard:
        trackers.add(TensorboardTracker(run.folder / "tensorboard", run.done_steps))
    trackers.add(JsonlTracker(run.folder / "steps.jsonl"))
    trackers.add(AdviceTracker(train, note, memory_known=run.on_gpu))
    trackers.add(_for_people(run))


def _for_people(run: Tracked) -> Tracker:
    """A bar on a terminal, lines elsewhere."""
    from rich.console import Console

    if Console().is_terminal:
        return ProgressTracker(run.recipe.train.steps, run.done_steps)
    return StepLineTracker(sys.stderr, run.recipe.train.log_every)
