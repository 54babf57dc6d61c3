"""summary.json: counts and rates with intervals, in all and per task, and the protocol they were obtained under."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from vlarge import __version__
from vlarge.evaluate.episode import FAILURE, INFRA_ERROR, SUCCESS
from vlarge.evaluate.plan import EvaluationPlan
from vlarge.evaluate.stats import wilson

Line = dict[str, Any]  # one line of episodes.jsonl


def summarize(lines: Sequence[Line], plan: EvaluationPlan, policy: str) -> dict[str, Any]:
    tasks = {}
    for task, spec in sorted(plan.specs.items()):
        rates = summarize_outcomes([line for line in lines if line["task"] == task])
        tasks[task] = {"metric": spec.metric, **rates, "spec_hash": spec.hash()}
    return {
        "metric": plan.metric,
        **summarize_outcomes(lines),
        "tasks": tasks,
        "spec_hash": plan.spec_hash(),
        "plan_hash": plan.plan_hash(),
        "policy": policy,
        "protocol": _protocol(plan),
    }


def summarize_outcomes(lines: Sequence[Line]) -> dict[str, Any]:
    """Counts, and the success rate over the episodes that were judged; infra errors are counted apart."""
    outcomes = [line["outcome"] for line in lines]
    num_success, num_failure = outcomes.count(SUCCESS), outcomes.count(FAILURE)
    num_judged = num_success + num_failure
    return {
        "num_episodes": len(lines),
        "num_success": num_success,
        "num_failure": num_failure,
        "num_infra_error": outcomes.count(INFRA_ERROR),
        "num_success_at_reset": sum(bool(line["success_at_reset"]) for line in lines),
        "success_rate": num_success / num_judged if num_judged else None,
        "wilson95": list(wilson(num_success, num_judged)),
    }


def _protocol(plan: EvaluationPlan) -> dict[str, Any]:
    """What someone needs to obtain these numbers again."""
    specs = plan.specs
    return {
        "seeds": sorted({key.seed for key in plan.keys}),
        "init_ids": sorted({key.init_id for key in plan.keys}),
        "replan": plan.replan,
        "cameras": {key: list(size) for key, size in next(iter(specs.values())).cameras.items()},
        "render_quality": plan.sim.render_quality,
        "horizon": {task: spec.horizon for task, spec in sorted(specs.items())},
        "control_hz": {task: spec.control_hz for task, spec in sorted(specs.items())},
        "reset_mode": sorted({spec.reset_mode for spec in specs.values()}),
        "simulator": sorted({spec.simulator for spec in specs.values()}),
        "inference": "one observation at a time, one thread",
        "versions": {
            "vlarge": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in ("numpy", "torch")},
        },
    }
