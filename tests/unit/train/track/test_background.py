"""A slow destination never holds a step; what it fails at is raised, once it is known."""

import threading
import time
from collections.abc import Sequence

import pytest

from vlarge.train.track import background
from vlarge.train.track.background import Background, Record


def test_records_arrive_in_order_and_many_at_a_time() -> None:
    sent: list[Sequence[Record]] = []
    go = threading.Event()

    def send(records: Sequence[Record]) -> None:
        go.wait(5)
        sent.append(records)

    sender = Background(send, "slow")
    begin_s = time.perf_counter()
    for step in range(120):
        sender.log({"step": step})
    assert time.perf_counter() - begin_s < 1.0
    go.set()
    sender.close()
    assert [record["step"] for records in sent for record in records] == [*range(120)]
    assert len(sent) < 10


def test_what_fails_is_raised_by_the_next_call() -> None:
    def send(records: Sequence[Record]) -> None:
        raise ConnectionError("gone")

    sender = Background(send, "failing")
    sender.log({"step": 1})
    sender._thread.join(5)
    with pytest.raises(ConnectionError, match="gone"):
        sender.log({"step": 2})
    with pytest.raises(ConnectionError, match="gone"):
        sender.close()


def test_what_hangs_does_not_hang_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "CLOSE_S", 0.1)
    monkeypatch.setattr(background, "MAX_WAITING", 3)
    began, go = threading.Event(), threading.Event()

    def send(records: Sequence[Record]) -> None:
        began.set()
        go.wait(10)

    sender = Background(send, "hanging")

    sender.log({"step": 0})
    assert began.wait(5)

    def log_on() -> None:
        for step in range(1, 5):
            sender.log({"step": step})

    with pytest.raises(TimeoutError, match="it is 3 steps behind"):
        log_on()
    with pytest.raises(TimeoutError, match=r"steps were not sent within"):
        sender.close()
    go.set()
    sender._thread.join(5)
    assert not sender._thread.is_alive()
