"""Meta-World keeps its promises: the quick ones with every change, all of them with the slow bars."""

from functools import partial

import pytest

from vlarge.sim import make_env
from vlarge.sim.config import SimConfig
from vlarge.sim.conformance import CHECKS, Trial, check_env
from vlarge.sim.metaworld.env import VIEWS

TASK = "metaworld/reach-v3"


def faults(cameras: tuple[str, ...], *checks: str) -> list[str]:
    trial = Trial(partial(make_env, TASK, SimConfig(cameras=cameras, image_size=64)))
    found = check_env(trial, only=checks)
    assert {finding.verdict for finding in found} <= {"ok", "fault"}, "nothing is left out"
    return [f"{finding.check}: {finding.detail}" for finding in found if finding.verdict != "ok"]


def test_pictures_of_all_cameras_are_the_right_way_up() -> None:
    assert faults(tuple(VIEWS), "upright", "as declared") == []


def test_time_success_and_snapshots() -> None:
    assert faults(("close",), "keeps its rate", "one reset an episode", "snapshots replay", "actions are checked") == []


@pytest.mark.long
def test_every_promise() -> None:
    assert faults(("corner2",), *CHECKS) == []
