"""Each check of the conformance suite lets a sound environment pass, and finds what it is there to find."""

from functools import partial

import pytest
from toy_env import FAULTS, ToyEnv, let_go

from vlarge.sim.conformance import CHECKS, Trial, check_env
from vlarge.sim.conformance.suite import Finding


def trial(fault: str = "") -> Trial:
    return Trial(partial(ToyEnv, fault), num_cycles=10, num_resets=60)


def test_a_sound_environment_passes_every_check() -> None:
    heard: list[Finding] = []
    found = check_env(trial(), heard.append)
    assert found == heard == [Finding(name, "ok") for name in CHECKS]


def test_every_check_has_an_environment_that_fails_it() -> None:
    assert FAULTS.keys() == CHECKS.keys()


@pytest.mark.parametrize(("check", "fault"), [(check, fault) for check, faults in FAULTS.items() for fault in faults])
def test_a_broken_promise_is_found(check: str, fault: str) -> None:
    found = {finding.check: finding for finding in check_env(trial(fault), only=(check,))}
    let_go()
    assert found[check].verdict == "fault"
    assert found[check].detail


@pytest.mark.parametrize(
    ("missing", "check"),
    [("time_s", "keeps its rate"), ("snapshot", "snapshots replay"), ("expert", "one reset an episode")],
)
def test_what_an_environment_does_not_offer_is_skipped_with_the_reason(
    missing: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ToyEnv, missing)
    (finding,) = check_env(trial(), only=(check,))
    assert finding.verdict == "skipped"
    assert f"has no {missing}" in finding.detail
