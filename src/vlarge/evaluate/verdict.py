"""The gate: is the candidate better than the baseline on the very same episodes?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vlarge.contracts import EpisodeKey, InputError
from vlarge.evaluate.episode import INFRA_ERROR, SUCCESS
from vlarge.evaluate.plan import EvaluationPlan, load_plan
from vlarge.evaluate.stats import evidence, holm, mcnemar
from vlarge.evaluate.summary import Line, summarize_outcomes

MCNEMAR, SEQUENTIAL = "mcnemar", "sequential"
MAX_INFRA = 0.1  # of a side's episodes
Pair = tuple[str, bool, bool]  # task, whether the candidate won, whether the baseline did

PROMOTE = "promote"
REJECT = "reject"
UNDECIDED = "undecided"


def gate(
    baseline: Path, candidate: Path, alpha: float = 0.05, *, test: str = MCNEMAR, max_infra: float = MAX_INFRA
) -> dict[str, Any]:
    """Compare two result folders on paired episode keys.

    promote: the candidate is better; reject: the baseline is; undecided otherwise. Each decision is wrong with
    probability at most alpha if there is no difference. An infra error counts against the candidate, whichever side it
    happened on.

    test: "mcnemar", exact and one-sided, for a number of episodes that was fixed before; or "sequential", for one that
    may be stopped at any time: pairs are looked at one after the other, every task in turn, until one side has
    `evidence` of 1/alpha.

    Raises InputError unless both folders judged the same keys in the same environments, and where more than max_infra
    of either side's episodes are infra errors: what broke is to be mended, not judged.
    """
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha is {alpha}; it must be above 0 and below 0.5")
    if test not in TESTS:
        raise InputError(f"the test is {test!r}; use {' or '.join(map(repr, TESTS))}")
    plans = [_read_plan(folder) for folder in (baseline, candidate)]
    results = [_read_episodes(folder) for folder in (baseline, candidate)]
    _check_paired(plans, results, baseline, candidate)
    for folder, lines in zip((baseline, candidate), results, strict=True):
        _check_infra(folder, lines, max_infra)
    # Worst case for the candidate: what is not known of the baseline was a success, of the candidate a failure.
    baseline_won = {key: line["outcome"] in (SUCCESS, INFRA_ERROR) for key, line in results[0].items()}
    candidate_won = {key: line["outcome"] == SUCCESS for key, line in results[1].items()}
    # Every task in turn, so that a test that stops early has seen all of them.
    order = sorted(baseline_won, key=lambda key: (key.init_id, key.seed, key.task))
    pairs = [(key.task, candidate_won[key], baseline_won[key]) for key in order]
    return {
        **TESTS[test](pairs, alpha),
        "alpha": alpha,
        "num_pairs": len(pairs),
        "tasks": _by_task(pairs),
        "metric": plans[0].metric,
        "baseline": _side(baseline, results[0]),
        "candidate": _side(candidate, results[1]),
    }


def _by_mcnemar(pairs: Sequence[Pair], alpha: float) -> dict[str, Any]:
    discordant = _discordant(pairs)
    p_better, p_worse = _p_values(discordant)
    verdict = PROMOTE if p_better <= alpha else REJECT if p_worse <= alpha else UNDECIDED
    return {
        "verdict": verdict,
        "test": "exact one-sided McNemar",
        "p_value": p_worse if verdict == REJECT else p_better,
        "p_candidate_better": p_better,
        "p_baseline_better": p_worse,
        "discordant": list(discordant),
    }


def _by_evidence(pairs: Sequence[Pair], alpha: float) -> dict[str, Any]:
    """num_pairs_needed: those up to the verdict; discordant: of these."""
    verdict, better, worse = UNDECIDED, 1.0, 1.0
    num_seen = candidate_only = baseline_only = 0
    for _, candidate_won, baseline_won in pairs:
        num_seen += 1
        if candidate_won == baseline_won:
            continue
        candidate_only += candidate_won
        baseline_only += baseline_won
        better, worse = evidence(candidate_only, baseline_only), evidence(baseline_only, candidate_only)
        verdict = PROMOTE if better >= 1 / alpha else REJECT if worse >= 1 / alpha else UNDECIDED
        if verdict != UNDECIDED:
            break
    return {
        "verdict": verdict,
        "test": "sequential mixture e-process",
        "e_value": worse if verdict == REJECT else better,
        "e_candidate_better": better,
        "e_baseline_better": worse,
        "discordant": [candidate_only, baseline_only],
        "num_pairs_needed": num_seen,
    }


TESTS: dict[str, Callable[[Sequence[Pair], float], dict[str, Any]]] = {MCNEMAR: _by_mcnemar, SEQUENTIAL: _by_evidence}


def _by_task(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Of each task, all pairs: p-values adjusted for as many tests as there are tasks."""
    counts = {task: _discordant([pair for pair in pairs if pair[0] == task]) for task in sorted({p[0] for p in pairs})}
    better, worse = (holm({task: _p_values(found)[side] for task, found in counts.items()}) for side in (0, 1))
    return {
        task: {"discordant": list(found), "p_candidate_better": better[task], "p_baseline_better": worse[task]}
        for task, found in counts.items()
    }


def _p_values(discordant: tuple[int, int]) -> tuple[float, float]:
    """Of "the candidate is better", and of "the baseline is"."""
    candidate_only, baseline_only = discordant
    return mcnemar(candidate_only, baseline_only, one_sided=True), mcnemar(
        baseline_only, candidate_only, one_sided=True
    )


def _discordant(pairs: Sequence[Pair]) -> tuple[int, int]:
    """How many went to the candidate alone, and to the baseline alone."""
    outcomes = [pair[1:] for pair in pairs]
    return outcomes.count((True, False)), outcomes.count((False, True))


def _check_infra(folder: Path, lines: dict[EpisodeKey, Line], most: float) -> None:
    num_lost = sum(line["outcome"] == INFRA_ERROR for line in lines.values())
    if num_lost > most * len(lines):
        raise InputError(
            f"{folder}: {num_lost} of {len(lines)} episodes are infra errors, more than {most:.0%}: mend what broke"
            " (attempts.jsonl says it) and evaluate again, or allow more with --max-infra"
        )


def _check_paired(
    plans: Sequence[EvaluationPlan], results: Sequence[dict[EpisodeKey, Line]], baseline: Path, candidate: Path
) -> None:
    unpaired = results[0].keys() ^ results[1].keys()
    if unpaired:
        raise InputError(
            f"{baseline} and {candidate} did not judge the same episodes: {len(unpaired)} are in one only, "
            f"for instance {tuple(min(unpaired))}; evaluate both on one plan (vlarge eval --plan)"
        )
    if plans[0].spec_hash() != plans[1].spec_hash():
        raise InputError(
            f"{baseline} and {candidate} ran in different environments (cameras, rendering, horizon or simulator "
            "version); evaluate both on one plan (vlarge eval --plan)"
        )


def _side(folder: Path, lines: dict[EpisodeKey, Line]) -> dict[str, Any]:
    path = folder / "summary.json"
    try:
        policy = json.loads(path.read_text(encoding="utf-8"))["policy"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as an evaluation's summary: {error}") from error
    return {"policy": policy, "path": str(folder), **summarize_outcomes(list(lines.values()))}


def _read_plan(folder: Path) -> EvaluationPlan:
    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder} holds no finished evaluation (no summary.json); run `vlarge eval` to its end first")
    return load_plan(folder / "plan.json")


def _read_episodes(folder: Path) -> dict[EpisodeKey, Line]:
    path = folder / "episodes.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        episodes = {EpisodeKey(line["task"], line["init_id"], line["seed"]): line for line in lines}
        outcomes = [line["outcome"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as evaluation results: {error}") from error
    if not outcomes:
        raise InputError(f"{path} has no episode: there is nothing to compare")
    if len(episodes) != len(lines):
        raise InputError(f"{path} has an episode twice; evaluate again")
    return episodes
