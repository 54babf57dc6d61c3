"""Run a plan with worker processes. The result depends on plan and policy only: law E2.

An output folder holds plan.json, policy.json, attempts.jsonl (the journal, with timings and processes),
episodes.jsonl (one line per key, what the key decides), summary.json and videos/.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlarge.contracts import EpisodeKey, InputError, check_ranges
from vlarge.evaluate.actors import fingerprint
from vlarge.evaluate.config import EvaluateConfig
from vlarge.evaluate.episode import INFRA_ERROR, EpisodeResult
from vlarge.evaluate.journal import Attempt, Journal, episode_line
from vlarge.evaluate.plan import EvaluationPlan, load_plan, write_atomically
from vlarge.evaluate.summary import summarize
from vlarge.evaluate.worker import Job, WorkerSettings, setup
from vlarge.sim.supervisor import Outcome, Supervisor


def run(
    plan: EvaluationPlan,
    policy: str,
    out: Path,
    config: EvaluateConfig | None = None,
    on_attempt: Callable[[Attempt], None] = lambda attempt: None,
) -> dict[str, Any]:
    """Judge `policy` on the plan's episodes; returns what summary.json holds.

    policy: see `actors.load_actor`. Of `config` only workers, videos, step_timeout_s and max_attempts count here. An
    `out` that holds part of the same evaluation is continued. Raises InputError for a policy that cannot be loaded or
    cannot act in these environments (nothing is left in `out` then), for an `out` that holds something else, and for
    one that another process is writing to.
    """
    config = config or EvaluateConfig()
    check_ranges("evaluate", config)
    _claim(out, plan, policy)
    journal = Journal(out / "attempts.jsonl")
    try:
        _run_open_episodes(plan, policy, out, config, journal, on_attempt)
        finals = [journal.final(key, config.max_attempts) for key in plan.keys]
    except InputError:
        if journal.empty:
            _unclaim(out)
        raise
    finally:
        journal.close()
    lines = [episode_line(attempt) for attempt in finals if attempt is not None]
    write_atomically(out / "episodes.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    summary = summarize(lines, plan, policy)
    write_atomically(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary


def _run_open_episodes(
    plan: EvaluationPlan,
    policy: str,
    out: Path,
    config: EvaluateConfig,
    journal: Journal,
    on_attempt: Callable[[Attempt], None],
) -> None:
    filmed = _filmed_keys(plan, config.videos)
    queue = [key for key in plan.keys if journal.final(key, config.max_attempts) is None]
    settings = WorkerSettings(plan, policy, out / "videos")
    num_workers = min(config.workers, max(len(queue), 1))

    def next_job() -> Job | None:
        if not queue:
            return None
        key = heapq.heappop(queue)
        return Job(key, film=key in filmed)

    with Supervisor(setup, settings, num_workers=num_workers, silence_s=config.step_timeout_s) as supervisor:
        for outcome in supervisor.run(next_job):
            key = outcome.job.key
            attempt = _attempt(outcome, journal.num_attempts(key) + 1)
            journal.append(attempt)
            on_attempt(attempt)
            if journal.final(key, config.max_attempts) is None:
                heapq.heappush(queue, key)


def _filmed_keys(plan: EvaluationPlan, num_videos: int) -> set[EpisodeKey]:
    """The first `num_videos` keys of each task."""
    return {key for task in plan.specs for key in [key for key in plan.keys if key.task == task][:num_videos]}


def _attempt(outcome: Outcome, number: int) -> Attempt:
    result: EpisodeResult = outcome.result or EpisodeResult(INFRA_ERROR, 0, None)
    return Attempt(
        **outcome.job.key._asdict(),
        attempt=number,
        outcome=result.outcome,
        num_steps=result.num_steps,
        success_at_reset=result.success_at_reset,
        error=outcome.error,
        wall_s=round(outcome.wall_s, 3),
        worker_pid=outcome.worker_pid,
    )


def _claim(out: Path, plan: EvaluationPlan, policy: str) -> None:
    """Make `out` the folder of this evaluation, or find that it is; anything else in it is refused."""
    claim = json.dumps({"policy": policy, "fingerprint": fingerprint(policy)}) + "\n"
    plan_path, policy_path = out / "plan.json", out / "policy.json"
    if plan_path.exists():
        if load_plan(plan_path).plan_hash() != plan.plan_hash():
            raise InputError(f"{out} holds an evaluation of another plan; choose another output folder")
        if not policy_path.exists() or policy_path.read_text(encoding="utf-8") != claim:
            raise InputError(f"{out} holds an evaluation of another policy or checkpoint; choose another output folder")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the output folder {out}: {error.strerror}") from error
    if (out / "attempts.jsonl").exists():
        raise InputError(f"{out} holds attempts without a plan; choose another output folder")
    write_atomically(policy_path, claim)
    plan.save(plan_path)


def _unclaim(out: Path) -> None:
    """Take back what `_claim` made: nothing was judged."""
    for name in ("plan.json", "policy.json", "attempts.jsonl"):
        (out / name).unlink(missing_ok=True)
    if not any(out.iterdir()):
        out.rmdir()
