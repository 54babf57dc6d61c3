"""Weights & Biases, offline, read back with its own reader; a resume goes on with the same run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vlarge.contracts import InputError
from vlarge.train.track.tracker import Tracked
from vlarge.train.track.wandb import WandbTracker

wandb = pytest.importorskip("wandb", reason="needs the extra track")

MakeRun = Callable[..., Tracked]
MakeRecord = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _service() -> Iterator[None]:
    yield
    wandb.teardown()  # its process


def stored(folder: Path) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    (path,) = folder.glob("*.wandb")
    reader = DataStore()
    reader.open_for_scan(str(path))
    found = []
    while data := reader.scan_data():
        found.append(Record.FromString(data))
    reader.close()
    return found


def losses(records: list[Any]) -> list[tuple[int, float]]:
    rows = [{item.nested_key[0]: item.value_json for item in each.history.item} for each in records]
    return [(int(row["train/step"]), float(row["train/loss"])) for row in rows if row]


def test_numbers_and_settings_are_stored_and_a_resume_is_the_same_run(make_run: MakeRun, record: MakeRecord) -> None:
    for done_steps in (0, 2):
        tracker = WandbTracker(make_run(done_steps, track_wandb="offline", track_project="arms"))
        for step in range(done_steps + 1, done_steps + 4):
            tracker.log(record(step))
        tracker.close(failed=False)
        wandb.teardown()  # as the end of the process does, and waits until everything is in the file
    first, second = sorted(make_run().folder.glob("wandb/offline-run-*"))
    assert losses(stored(first)) == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert losses(stored(second)) == [(3, 1 / 3), (4, 0.25), (5, 0.2)]
    runs = [next(each.run for each in stored(folder) if each.run.run_id) for folder in (first, second)]
    assert runs[0].run_id == runs[1].run_id
    assert (runs[0].project, runs[0].display_name) == ("arms", "mine")
    settings = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert settings["track"]["project"] == "arms"


def test_a_server_that_does_not_answer_is_named(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    wandb.teardown()  # which read its settings before
    with pytest.raises(InputError, match=r"track\.wandb: nothing answers at http://127\.0\.0\.1:9 "):
        WandbTracker(make_run(track_wandb="online"))
