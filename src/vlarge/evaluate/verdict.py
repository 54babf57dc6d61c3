"""The gate: is the candidate better than the baseline on the very same episodes?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlarge.contracts import EpisodeKey, InputError
from vlarge.evaluate.episode import INFRA_ERROR, SUCCESS
from vlarge.evaluate.plan import EvaluationPlan, load_plan
from vlarge.evaluate.stats import mcnemar
from vlarge.evaluate.summary import Line, summarize_outcomes

PROMOTE = "promote"
REJECT = "reject"
UNDECIDED = "undecided"


def gate(baseline: Path, candidate: Path, alpha: float = 0.05) -> dict[str, Any]:
    """Compare two result folders by the exact one-sided McNemar test on paired episode keys.

    promote: the candidate is better with p <= alpha; reject: the baseline is; undecided otherwise. Each decision is
    wrong with probability at most alpha if there is no difference. An infra error counts against the candidate,
    whichever side it happened on. Raises InputError unless both folders judged the same keys in the same environments.
    """
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha is {alpha}; it must be above 0 and below 0.5")
    plans = [_read_plan(folder) for folder in (baseline, candidate)]
    results = [_read_episodes(folder) for folder in (baseline, candidate)]
    _check_paired(plans, results, baseline, candidate)
    # Worst case for the candidate: what is not known of the baseline was a success, of the candidate a failure.
    baseline_won = {key: line["outcome"] in (SUCCESS, INFRA_ERROR) for key, line in results[0].items()}
    candidate_won = {key: line["outcome"] == SUCCESS for key, line in results[1].items()}
    candidate_only = sum(candidate_won[key] and not won for key, won in baseline_won.items())
    baseline_only = sum(won and not candidate_won[key] for key, won in baseline_won.items())
    p_better = mcnemar(candidate_only, baseline_only, one_sided=True)
    p_worse = mcnemar(baseline_only, candidate_only, one_sided=True)
    verdict = PROMOTE if p_better <= alpha else REJECT if p_worse <= alpha else UNDECIDED
    return {
        "verdict": verdict,
        "test": "exact one-sided McNemar",
        "alpha": alpha,
        "p_value": p_worse if verdict == REJECT else p_better,
        "p_candidate_better": p_better,
        "p_baseline_better": p_worse,
        "discordant": [candidate_only, baseline_only],
        "num_pairs": len(baseline_won),
        "metric": plans[0].metric,
        "baseline": _side(baseline, results[0]),
        "candidate": _side(candidate, results[1]),
    }


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
