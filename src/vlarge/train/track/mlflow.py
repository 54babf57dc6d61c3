"""The run in MLflow: an experiment's run with every setting as a parameter and every number as a metric."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from vlarge.contracts import InputError
from vlarge.train.track.background import Background
from vlarge.train.track.service import check_reachable, keep_id, known_id, require
from vlarge.train.track.tracker import Tracked, scalars

SETTING = "track.mlflow"
MAX_PARAMS, MAX_METRICS = 100, 1000  # MLflow takes so many at a time
MAX_PARAM_LENGTH = 6000


class MlflowTracker:
    """Metrics under train/, written by a thread of its own.

    Raises InputError without the package, and where the store cannot be opened or does not know the run.
    """

    def __init__(self, run: Tracked) -> None:
        uri = run.recipe.track.mlflow
        _check(uri)
        with warnings.catch_warnings(action="ignore"):  # its own use of its parts
            self._mlflow = require("mlflow", SETTING)
            try:
                self._client = self._mlflow.MlflowClient(uri)
                self._run_id = self._continued(run) or self._created(run)
            except InputError:
                raise
            except Exception as error:  # of SQLAlchemy, requests, or MLflow: whatever the store is made of
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(f"{SETTING}: {uri} cannot be used: {reason}") from error
        keep_id(run.folder, "mlflow", self._run_id)
        self._background = Background(self._send, "mlflow")

    def log(self, record: Mapping[str, Any]) -> None:
        self._background.log({**record, "time_ms": int(time.time() * 1000)})

    def close(self, *, failed: bool) -> None:
        self._background.close()
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _continued(self, run: Tracked) -> str | None:
        run_id = known_id(run.folder, "mlflow")
        if run_id is None:
            return None
        try:
            self._client.update_run(run_id, status="RUNNING")
        except self._mlflow.exceptions.MlflowException as error:
            raise InputError(
                f"{SETTING}: {run.recipe.track.mlflow} does not have run {run_id}, which {run.folder}/track.json names:"
                " give the store that it began in, or remove that file to begin a new run there"
            ) from error
        return run_id

    def _created(self, run: Tracked) -> str:
        project = run.recipe.track.project
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
        run_id = str(self._client.create_run(experiment_id, run_name=run.name).info.run_id)
        params = [self._mlflow.entities.Param(key, value) for key, value in _params(asdict(run.recipe))]
        for begin in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run_id, params=params[begin : begin + MAX_PARAMS])
        return run_id

    def _send(self, records: Sequence[Mapping[str, Any]]) -> None:
        metrics = [
            self._mlflow.entities.Metric(f"train/{key}", float(value), record["time_ms"], record["step"])
            for record in records
            for key, value in scalars(record).items()
            if key != "time_ms"
        ]
        for begin in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[begin : begin + MAX_METRICS])


def _check(uri: str) -> None:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InputError(f"{SETTING} is {uri!r}, which is no address: {error}") from None
    is_http = parts.scheme in ("http", "https")
    if parts.password or (is_http and parts.username):
        raise InputError(
            f"{SETTING} holds a login, which the run directory would keep: use MLFLOW_TRACKING_USERNAME and"
            " MLFLOW_TRACKING_PASSWORD, or the database's own password file"
        )
    if is_http:
        check_reachable(uri, SETTING)


def _params(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by its dotted name, as text."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _params(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)[:MAX_PARAM_LENGTH]
