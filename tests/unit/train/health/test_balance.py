"""Ratios and scores of the ranks, from their times."""

import json
from pathlib import Path

import numpy as np
import pytest

from vlarge.train.health.balance import Balance, Report, gathered
from vlarge.train.health.events import Events
from vlarge.train.parallel.world import World

EVEN = [0.01, 0.4, 0.5, 0.09, 0.2]  # data, forward, backward, optimizer, communicate


def test_the_slowest_rank_and_its_section_are_named() -> None:
    seconds_RS = np.array([EVEN] * 4)
    seconds_RS[2, 1] = 0.8
    report = Report(seconds_RS, np.array([1, 1, 0.5, 1]))
    assert report.slowest == 2
    np.testing.assert_allclose(report.score_R, [1, 1, 1.0 / 1.4, 1])
    assert report.sections()["forward"] == {"rank": 2, "max_s": 0.8, "max_over_median": 2.0}
    assert report.sections()["backward"]["max_over_median"] == 1.0
    assert report.text() == (
        "rank 2 is the slowest (score 0.71), most of all in forward: 0.800 s a step where the median is 0.400 s"
    )
    assert report.facts()["scores"]["2"] == {"relative": 0.714, "own": 0.5}


def test_waiting_for_others_makes_nobody_slow() -> None:
    seconds_RS = np.array([EVEN] * 4)
    seconds_RS[0, 4] = 5.0
    np.testing.assert_allclose(Report(seconds_RS, np.ones(4)).score_R, 1)


def test_what_takes_no_time_has_no_ratio() -> None:
    seconds_RS = np.array([EVEN] * 4)
    seconds_RS[:, 0] = [1e-7, 1e-7, 1e-7, 9e-4]
    assert Report(seconds_RS, np.ones(4)).sections()["data"]["max_over_median"] == 1.0
    assert Report(np.zeros((2, 5)), np.ones(2)).score_R.tolist() == [1, 1]


class Twins(World):
    """Two processes, of which the second takes twice as long in its forward pass."""

    def sum(self, *values: float) -> list[float]:
        rows = np.array(values).reshape(2, -1)
        rows[1] = rows[0]
        rows[1, 1] *= 2
        return rows.ravel().tolist()


@pytest.fixture
def balance(tmp_path: Path) -> Balance:
    world = Twins(0, 2)
    return Balance(world, 3, Events(tmp_path, 0, world.pulse))


def seconds(forward_s: float) -> dict[str, float]:
    return {"step_s": 2.0, "data_wait_s": 0.0, "forward_s": forward_s, "backward_s": 1.0}


def test_a_window_of_steps_is_compared_at_its_end(balance: Balance, tmp_path: Path) -> None:
    assert [balance.add(seconds(s)) for s in (1.0, 2.0)] == [{}, {}]
    record = balance.add(seconds(3.0))
    assert (record["slowest_rank"], record["slowest_score"]) == (1, pytest.approx(3 / 5))
    assert record["forward_max_over_median"] == pytest.approx(4 / 3, abs=1e-3)
    assert all(isinstance(value, int | float) for value in record.values())
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["kind"], event["rank"]) == ("balance", 1)
    assert balance.add(seconds(1.0)) == {}


def test_a_rank_is_compared_with_its_own_best(balance: Balance, tmp_path: Path) -> None:
    for forward_s in (1.0, 3.0, 2.0):
        for _ in range(3):
            balance.add(seconds(forward_s))
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["scores"]["0"]["own"] for event in events] == [1.0, 0.5, pytest.approx(2 / 3, abs=1e-3)]


def test_a_run_of_one_process_compares_nothing(tmp_path: Path) -> None:
    balance = Balance(World(), 1, Events(tmp_path, 0, World().pulse))
    assert balance.add(seconds(1.0)) == {}
    assert not (tmp_path / "events.jsonl").exists()


def test_rows_are_gathered_by_rank() -> None:
    assert gathered(World(), [1.0, 2.0]).tolist() == [[1.0, 2.0]]
