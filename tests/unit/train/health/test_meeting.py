"""Processes of one start find each other in a store with the words of dead ones."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from vlarge.train.health.meeting import Meeting, Missing, meet


def start(store: dist.Store, size: int, timeout_s: float = 20.0) -> list[Meeting]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: meet(store, rank, size, timeout_s), range(size)))


def test_each_start_has_a_place_of_its_own_and_all_share_a_launch() -> None:
    store = dist.HashStore()
    first, second = start(store, 4), start(store, 4)
    assert len({meeting.launch for meeting in first + second}) == 1
    first[0].store.set("address", "of a dead process")
    assert not any(meeting.store.check(["address"]) for meeting in second)
    second[3].store.set("address", "here")
    assert all(meeting.store.get("address") == b"here" for meeting in second)


def test_who_comes_late_is_waited_for_and_not_taken_for_who_died() -> None:
    """Ranks 0 and 1 see the words of an earlier start of rank 2, which had got as far as to accept."""
    store = dist.HashStore()
    start(store, 3)
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(meet, store, rank, 3, 20.0) for rank in (0, 1)]
        with pytest.raises(TimeoutError):
            early[1].result(0.5)
        late = pool.submit(meet, store, 2, 3, 20.0)
        late.result().store.set("x", "y")
        assert all(each.result().store.get("x") == b"y" for each in early)


def test_who_is_missing_is_named() -> None:
    with pytest.raises(Missing, match="not at the start of the run in time: rank 2;"):
        start_without_the_third()


def start_without_the_third() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        main = pool.submit(meet, store, 0, 3, 0.2)
        other = pool.submit(meet, store, 1, 3, -5.0)
        with pytest.raises(Missing, match="rank 0"):
            other.result()
        main.result()
