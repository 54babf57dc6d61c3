"""What needs torch's process group: its timeouts, and where the backward pass ends and the wait begins."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from vlarge.train.health.pulse import BACKWARD, BETWEEN, Pulse
from vlarge.train.health.timeouts import shorten
from vlarge.train.parallel.data import mark_wait, reducing
from vlarge.train.parallel.world import World


@pytest.fixture
def group() -> Iterator[World]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60))
    yield World(0, 2)
    dist.destroy_process_group()


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    return group._get_backend(torch.device("cpu")).options._timeout


def test_every_group_has_the_short_timeout(group: World) -> None:
    other = dist.new_group([0])
    assert timeout_of(dist.group.WORLD) == timedelta(seconds=60)
    shorten(group, 7)
    assert timeout_of(dist.group.WORLD) == timeout_of(other) == timedelta(seconds=7)


@pytest.mark.usefixtures("group")
def test_the_backward_pass_ends_where_the_wait_for_others_begins() -> None:
    replica, pulse = DistributedDataParallel(torch.nn.Linear(3, 3)), Pulse()
    for now, rounds in ((False, 0), (True, 1)):
        pulse.begin_step(1)
        with reducing(replica, now=now):
            loss = replica(torch.ones(2, 3)).sum()
            with pulse.section(BACKWARD):
                mark_wait(replica, loss, pulse)
                loss.backward()
        assert pulse.rounds == rounds
        assert ("communicate_s" in pulse.seconds()) == now
        assert pulse.seconds()["backward_s"] > 0
        assert pulse.place.section == BETWEEN
    plain = torch.nn.Linear(3, 3)
    loss = plain(torch.ones(2, 3)).sum()
    mark_wait(plain, loss, pulse)
    loss.backward()
    assert pulse.rounds == 1
