"""The newest numbers at http://127.0.0.1:PORT/metrics, in Prometheus's text format 0.0.4."""

from __future__ import annotations

import errno
import math
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vlarge.contracts import InputError

HOST = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """key: in a step's record; a record without it leaves the metric out."""

    name: str
    kind: str
    key: str
    help: str


METRICS = (
    Metric("vlarge_step", "gauge", "step", "Optimizer steps that the run has done."),
    Metric("vlarge_samples_total", "counter", "samples", "Samples that the run has trained on, over all processes."),
    Metric("vlarge_step_seconds", "gauge", "step_s", "Seconds of the last step."),
    Metric("vlarge_data_wait_seconds", "gauge", "data_wait_s", "Seconds of it that waited for data."),
    Metric("vlarge_exposed_comm_seconds", "gauge", "communicate_s", "Seconds of it that waited for other processes."),
    Metric("vlarge_goodput_ratio", "gauge", "goodput", "Share of the run's time that went into steps that count."),
    Metric("vlarge_mfu_ratio", "gauge", "mfu", "Model arithmetic of the last step, of the hardware's peak."),
    Metric("vlarge_loss", "gauge", "loss", "Loss of the last step."),
    Metric("vlarge_grad_norm", "gauge", "grad_norm", "Gradient norm of the last step, before it is clipped."),
    Metric("vlarge_learning_rate", "gauge", "lr", "Learning rate of the last step."),
    Metric(
        "vlarge_memory_bytes", "gauge", "memory_bytes", "Bytes of memory: the most in use so far on a GPU, else in use."
    ),
)


def exposition(values: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Text format 0.0.4 of the metrics whose key is in `values`."""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    lines = []
    for metric in METRICS:
        if metric.key in values:
            lines.append(f"# HELP {metric.name} {metric.help}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines.append(f"{metric.name}{{{inside}}} {_number(values[metric.key])}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


class PrometheusTracker:
    """Serves this process's numbers to programs on this machine until it is closed.

    Raises InputError where the port is taken.
    """

    def __init__(self, port: int, run: str, rank: int, batch_size: int) -> None:
        self._labels = {"run": run, "rank": str(rank), "node": socket.gethostname()}
        self._batch_size = batch_size
        self._server = _server(port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="prometheus", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/metrics"

    def log(self, record: Mapping[str, Any]) -> None:
        samples = record["step"] * self._batch_size  # a global batch is always so many
        self._server.text = exposition({**record, "samples": samples}, self._labels)

    def close(self, *, failed: bool) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    text = ""  # of the newest step


def _server(port: int) -> _Server:
    try:
        return _Server((HOST, port), _Handler)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "another program has that port" if taken else error.strerror or str(error)
        raise InputError(
            f"cannot serve metrics at {HOST}:{port}: {why}; set track.prometheus_port to a free port, or to 0 for none"
        ) from None


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5  # a client that says nothing holds its thread so many seconds

    def do_GET(self) -> None:
        if not self._is_local():  # a page that made its name point here must not read them
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._answer(self.server.text.encode())

    def _is_local(self) -> bool:
        host = self.headers.get("Host", HOST).rpartition(":")[0] or self.headers.get("Host", HOST)
        return host in (HOST, "localhost") and "Origin" not in self.headers

    def _answer(self, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass  # the run's log is for the run
