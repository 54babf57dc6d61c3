"""Sections take their own time only, cost next to nothing, and are late when they last far longer than usual."""

import time

import pytest

from vlarge.train.health import pulse as pulses
from vlarge.train.health.pulse import BETWEEN, COMMUNICATE, DATA, FORWARD, NEW_S, OPTIMIZER, Beat, Pulse


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pulses, "_clock", clock)
    return clock


def spend(pulse: Pulse, clock: Clock, name: str, seconds: float) -> None:
    with pulse.section(name):
        clock.now_s += seconds


def test_a_section_is_timed_without_those_inside_it(clock: Clock) -> None:
    pulse = Pulse()
    pulse.begin_step(7)
    clock.now_s += 1
    with pulse.section(OPTIMIZER):
        clock.now_s += 2
        spend(pulse, clock, COMMUNICATE, 4)
        clock.now_s += 8
    assert pulse.seconds() == {"step_s": 15, "optimizer_s": 10, "communicate_s": 4}
    assert pulse.place.section == BETWEEN
    pulse.begin_step(8)
    spend(pulse, clock, DATA, 3)
    assert pulse.seconds() == {"step_s": 3, "data_wait_s": 3}


def test_a_wait_inside_a_block_belongs_to_others_until_its_end(clock: Clock) -> None:
    pulse = Pulse()
    with pulse.section(FORWARD):
        clock.now_s += 1
        pulse.move(COMMUNICATE)
        clock.now_s += 2
    assert pulse.seconds() == {"step_s": 3, "forward_s": 1, "communicate_s": 2}
    assert (pulse.place.section, pulse.rounds) == (BETWEEN, 1)


def test_an_error_leaves_the_section(clock: Clock) -> None:
    pulse = Pulse()
    with pytest.raises(KeyError), pulse.section(DATA):
        raise KeyError
    assert pulse.place.section == BETWEEN


def test_late_is_long_and_far_longer_than_usual(clock: Clock) -> None:
    pulse = Pulse(stall_s=8)
    for _ in range(5):
        spend(pulse, clock, FORWARD, 2)
        spend(pulse, clock, DATA, 0.01)
    with pulse.section(FORWARD):
        clock.now_s += 19
        assert not pulse.beat(1).late
        clock.now_s += 2
        assert pulse.beat(2).late
    with pulse.section(DATA, lambda: "file 7"):
        clock.now_s += 7
        assert (pulse.beat(3).late, pulse.beat(3).detail) == (False, "")
        clock.now_s += 2
        beat = pulse.beat(4)
    assert (beat.late, beat.detail, beat.section_s) == (True, "file 7", 9)
    after = pulse.beat(5)
    assert (after.ended_entry, after.ended_s) == (beat.entry, 9)


def test_what_is_new_may_take_long(clock: Clock) -> None:
    pulse = Pulse()
    with pulse.section(FORWARD):
        clock.now_s += NEW_S - 1
        assert not pulse.beat(1).late
        clock.now_s += 2
        assert pulse.beat(2).late


def test_a_section_in_which_the_process_was_stopped_is_not_late(clock: Clock) -> None:
    pulse = Pulse()
    with pulse.section(DATA):
        clock.now_s += NEW_S + 1
        pulse.excuse()
        assert not pulse.beat(1).late
    with pulse.section(FORWARD):
        clock.now_s += NEW_S + 1
        assert pulse.beat(2).late


def test_one_stall_does_not_become_the_rule(clock: Clock) -> None:
    pulse = Pulse(stall_s=8)
    for seconds in (0.1, 0.1, 600, 0.1):
        spend(pulse, clock, DATA, seconds)
    with pulse.section(DATA):
        clock.now_s += 9
        assert pulse.beat(1).late


def test_a_beat_survives_its_json() -> None:
    beat = Beat(3, 5, DATA, 0.5, 12, True, 9, "ä file", 11, 20.5, True)
    assert Beat.from_json(beat.to_json()) == beat


def test_to_set_a_section_costs_less_than_five_microseconds() -> None:
    pulse, best_s = Pulse(), 1.0
    for _ in range(20):
        start_s = time.thread_time()  # of this processor: others may be busy too
        for _ in range(500):
            with pulse.section(FORWARD):
                pass
        best_s = min(best_s, (time.thread_time() - start_s) / 1000)  # a block sets it twice
    assert best_s < 5e-6
