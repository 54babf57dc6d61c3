"""The gate on result folders: paired, one-sided, worst case for the candidate."""

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest

from vlarge.contracts import EpisodeKey, InputError
from vlarge.evaluate.config import EvaluateConfig
from vlarge.evaluate.plan import make_plan
from vlarge.evaluate.summary import summarize
from vlarge.evaluate.verdict import gate
from vlarge.sim.config import SimConfig

OUTCOMES = {"1": "success", "0": "failure", "x": "infra_error"}


def result(folder: str, outcomes: str, horizon: int = 40, first_init_id: int = 0) -> Path:
    """A result folder as `run` leaves it, one character of `outcomes` per episode."""
    sim = SimConfig(image_size=16, cameras=("front",), horizon=horizon)
    plan = make_plan(EvaluateConfig(tasks=("fake/line",), episodes=len(outcomes)), sim, first_init_id=first_init_id)
    lines = [
        {**EpisodeKey(*key)._asdict(), "outcome": OUTCOMES[outcome], "num_steps": 9, "success_at_reset": False}
        for key, outcome in zip(plan.keys, outcomes, strict=True)
    ]
    path = Path(folder)
    path.mkdir()
    plan.save(path / "plan.json")
    (path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "summary.json").write_text(json.dumps(summarize(lines, plan, folder)))
    return path


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict", "discordant"),
    [
        ("0000000000", "0000011111", "promote", [5, 0]),
        ("0000011111", "0000000000", "reject", [0, 5]),
        ("0000000000", "0000001111", "undecided", [4, 0]),
        ("1111111111", "1111111111", "undecided", [0, 0]),
        ("0000000001", "1111111110", "promote", [9, 1]),
        # Infra errors count against the candidate, on either side.
        ("0000000000", "0000x11111", "promote", [5, 0]),
        ("000000000x", "0000011111", "undecided", [4, 0]),
        ("1111111111", "11111xxxxx", "reject", [0, 5]),
        ("xxxxx00000", "1111100000", "undecided", [0, 0]),
    ],
)
def test_verdicts(fake_sim, baseline, candidate, verdict, discordant):
    decision = gate(result("baseline", baseline), result("candidate", candidate), max_infra=1.0)
    assert decision["verdict"] == verdict
    assert decision["discordant"] == discordant
    side = discordant[0] if verdict != "reject" else discordant[1]
    expected = binomtest(side, sum(discordant), 0.5, "greater").pvalue if sum(discordant) else 1.0
    assert decision["p_value"] == pytest.approx(expected, abs=1e-12)
    assert decision["test"] == "exact one-sided McNemar"
    assert decision["num_pairs"] == 10
    assert decision["candidate"]["num_success"] == candidate.count("1")
    assert decision["baseline"]["policy"] == "baseline"
    assert decision["candidate"]["num_infra_error"] == candidate.count("x")


def test_too_many_infra_errors_are_not_judged(fake_sim):
    baseline = result("baseline", "0000000000")
    assert gate(baseline, result("one", "x111111111"))["verdict"] == "promote"
    with pytest.raises(InputError, match="two: 2 of 10 episodes are infra errors, more than 10%: mend what broke"):
        gate(baseline, result("two", "xx11111111"))


def test_the_sequential_test_stops_as_soon_as_one_side_has_enough(fake_sim):
    baseline = result("baseline", "0" * 12)
    decision = gate(baseline, result("better", "1" * 12), test="sequential")
    assert (decision["verdict"], decision["num_pairs_needed"], decision["discordant"]) == ("promote", 7, [7, 0])
    assert decision["e_value"] == pytest.approx((2**8 - 1) / 8)
    worse = gate(result("better_before", "1" * 12), result("worse", "0" * 12), test="sequential")
    assert (worse["verdict"], worse["num_pairs_needed"]) == ("reject", 7)
    open_still = gate(baseline, result("alike", "0" * 6 + "1" * 6), test="sequential")
    assert (open_still["verdict"], open_still["num_pairs_needed"]) == ("undecided", 12)
    assert "p_value" not in decision
    with pytest.raises(InputError, match="the test is 'wald'; use 'mcnemar' or 'sequential'"):
        gate(baseline, result("any", "0" * 12), test="wald")


def test_tasks_are_told_apart_with_p_values_for_as_many_tests(fake_sim):
    decision = gate(result("baseline", "00000"), result("candidate", "11111"))
    assert decision["tasks"] == {
        "fake/line": {"discordant": [5, 0], "p_candidate_better": 1 / 32, "p_baseline_better": 1.0}
    }


def test_alpha_decides(fake_sim):
    folders = result("baseline", "000000"), result("candidate", "001111")
    assert gate(*folders)["verdict"] == "undecided"
    assert gate(*folders, alpha=0.1)["verdict"] == "promote"
    for alpha in (0.0, 0.5, 1.0):
        with pytest.raises(InputError):
            gate(*folders, alpha=alpha)


def test_unpaired_results_are_refused(fake_sim):
    baseline = result("baseline", "0000")
    with pytest.raises(InputError, match="same episodes: 2 are in one only"):
        gate(baseline, result("shifted", "1111", first_init_id=1))
    with pytest.raises(InputError, match="different environments"):
        gate(baseline, result("longer", "1111", horizon=50))


def test_unfinished_or_empty_results_are_refused(fake_sim):
    baseline, candidate = result("baseline", "0000"), result("candidate", "1111")
    (candidate / "episodes.jsonl").write_text("")
    with pytest.raises(InputError, match="no episode"):
        gate(baseline, candidate)
    (candidate / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="cannot be read"):
        gate(baseline, candidate)
    (candidate / "summary.json").unlink()
    with pytest.raises(InputError, match="no finished evaluation"):
        gate(baseline, candidate)
    with pytest.raises(InputError, match="no finished evaluation"):
        gate(Path("absent"), baseline)


@pytest.mark.parametrize("content", ['{"policy": ', "[]", "{}", "\xff"])
def test_a_damaged_summary_is_named(fake_sim, content):
    folders = result("baseline", "0000"), result("candidate", "1111")
    Path("candidate/summary.json").write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"candidate/summary\.json cannot be read as an evaluation's summary"):
        gate(*folders)
