"""What a collective says of a process that left becomes one line; every other error stays what it is."""

from pathlib import Path

import pytest
import torch.distributed as dist

from vlarge.contracts import InputError
from vlarge.train.health.lost import LostPeer, losing_peers, told_how_to_go_on

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:9: Connection reset by peer"
IN_BACKWARD = f"Got the following error when running the callback: RuntimeError: {CLOSED}\n\nAt:\n  data.py(41): after"


@pytest.mark.parametrize("error", [RuntimeError(CLOSED), RuntimeError(IN_BACKWARD)])
def test_gloos_words_lose_their_place(error: Exception) -> None:
    with pytest.raises(LostPeer) as caught, losing_peers():
        raise error
    assert str(caught.value) == (
        "another process is gone or too late (Read error [127.0.0.1]:9: Connection reset by peer)"
    )


def test_an_error_that_was_wrapped_is_known() -> None:
    wrapped = RuntimeError("a stage's backward failed")
    wrapped.__cause__ = dist.DistBackendError("NCCL watchdog: timed out")
    with pytest.raises(LostPeer, match="NCCL watchdog"), losing_peers():
        raise wrapped


def test_another_error_stays() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), losing_peers():
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize(
    ("last", "where"), [(Path("runs/a/checkpoints/00000020"), "checkpoint 00000020"), (None, "its beginning")]
)
def test_it_is_said_where_the_run_goes_on(last: Path | None, where: str) -> None:
    told = pytest.raises(InputError, match=f"Connection reset by peer.*goes on from {where}.*--resume")
    with told, told_how_to_go_on(lambda: last):
        raise RuntimeError(CLOSED)
