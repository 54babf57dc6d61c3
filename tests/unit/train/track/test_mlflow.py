"""MLflow in a database of its own, read back with its own client; a resume goes on with the same run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlarge.contracts import InputError
from vlarge.train.track.mlflow import MlflowTracker
from vlarge.train.track.tracker import Tracked

pytest.importorskip("mlflow", reason="needs the extra track")
pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow, about its own parts


def test_one_run_holds_settings_and_numbers_of_both_starts(
    make_run: Callable[..., Tracked], record: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for done_steps in (0, 2):
        run = make_run(done_steps, track_mlflow=uri, track_project="arms", train_lr=0.125)
        tracker = MlflowTracker(run)
        for step in range(done_steps + 1, 3 + 30 * done_steps):
            tracker.log(record(step, time_s=1e9))
        tracker.close(failed=done_steps == 0)
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("arms")
        (found,) = client.search_runs([experiment.experiment_id])
        assert found.info.status == ("FINISHED" if done_steps else "FAILED")
    history = [(each.step, each.value) for each in client.get_metric_history(found.info.run_id, "train/loss")]
    assert sorted(history) == [(step, 1 / step) for step in range(1, 63)]  # all that was waiting is there
    assert found.data.params["train.lr"] == "0.125"
    assert found.info.run_name == "mine"
    (run.folder / "track.json").write_text('{"mlflow": "elsewhere"}')
    with pytest.raises(InputError, match=r"does not have run elsewhere, which .*track\.json names"):
        MlflowTracker(run)


def test_a_store_that_cannot_be_opened_is_named(make_run: Callable[..., Tracked], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match=r"track\.mlflow: sqlite:.* cannot be used: "):
        MlflowTracker(make_run(track_mlflow=f"sqlite:///{tmp_path}/file/mlflow.db"))
