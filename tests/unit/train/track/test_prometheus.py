"""Metrics over real HTTP, in the format that Prometheus reads."""

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from vlarge.train.track.prometheus import METRICS, PrometheusTracker, exposition

MakeRecord = Callable[..., dict[str, Any]]
SAMPLE = re.compile(r'^([a-z_]+)\{run="((?:[^"\\\n]|\\["\\n])*)",rank="(\d+)",node="([^"]+)"\} (\S+)$')


@pytest.fixture
def tracker() -> Iterator[PrometheusTracker]:
    tracker = PrometheusTracker(0, "mine", rank=3, batch_size=32)
    yield tracker
    tracker.close(failed=False)


def test_numbers_of_the_newest_step(tracker: PrometheusTracker, record: MakeRecord) -> None:
    for step in (1, 2):
        tracker.log(record(step, goodput=0.5))
    with urlopen(tracker.url, timeout=5) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        values = samples(answer.read().decode())
    assert values["vlarge_samples_total"] == 64
    assert values["vlarge_step_seconds"] == 0.5
    assert values["vlarge_data_wait_seconds"] == 0.125
    assert values["vlarge_goodput_ratio"] == 0.5
    assert values["vlarge_loss"] == 0.5
    assert "vlarge_exposed_comm_seconds" not in values  # which this record does not have


def samples(text: str) -> dict[str, float]:
    """Every sample, each after its HELP and TYPE; the text is nothing else."""
    lines = text.splitlines()
    assert text.endswith("\n")
    assert len(lines) % 3 == 0
    found = {}
    for about, kind, line in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        match = SAMPLE.match(line)
        assert match, line
        assert about.startswith(f"# HELP {match[1]} ")
        assert kind in (f"# TYPE {match[1]} gauge", f"# TYPE {match[1]} counter")
        assert kind.endswith("counter") == match[1].endswith("_total")
        found[match[1]] = float(match[5])
    return found


def test_nothing_is_said_before_the_first_step(tracker: PrometheusTracker) -> None:
    with urlopen(tracker.url, timeout=5) as answer:
        assert answer.read() == b""


def test_labels_are_escaped_and_numbers_written_as_the_format_asks() -> None:
    labels = {"run": 'a"b\\c\nd', "rank": "0", "node": "n"}
    text = exposition({"loss": float("inf"), "lr": float("nan"), "goodput": -float("inf")}, labels)
    assert r'vlarge_loss{run="a\"b\\c\nd",rank="0",node="n"} +Inf' in text.splitlines()
    assert [line.split()[-1] for line in text.splitlines()[2::3]] == ["-Inf", "+Inf", "NaN"]
    everything = samples(exposition({metric.key: 1.5 for metric in METRICS}, labels))
    assert len(everything) == len(METRICS)


@pytest.mark.parametrize("headers", [{"Host": "evil.example:80"}, {"Origin": "http://evil.example"}])
def test_pages_from_elsewhere_do_not_read_them(tracker: PrometheusTracker, headers: dict[str, str]) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(tracker.url, headers=headers), timeout=5)
    assert refused.value.code == 403
    refused.value.close()


def test_other_paths_are_not_found(tracker: PrometheusTracker) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(tracker.url.replace("/metrics", "/"), timeout=5)
    assert refused.value.code == 404
    refused.value.close()


def test_it_ends_with_the_run() -> None:
    tracker = PrometheusTracker(0, "mine", rank=0, batch_size=1)
    address = tracker.url.split("/")[2]
    tracker.close(failed=True)
    assert not [thread for thread in threading.enumerate() if thread.name == "prometheus"]
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(address, timeout=5).connect()
