"""`vlarge eval`: judge a policy in closed loop on a fixed list of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vlarge.cli.arguments import parse
from vlarge.cli.show import console, print_json, print_table, progress, rate_cells
from vlarge.contracts import InputError
from vlarge.evaluate.config import EvaluateConfig
from vlarge.sim.config import SimConfig

if TYPE_CHECKING:
    from vlarge.evaluate.journal import Attempt
    from vlarge.evaluate.plan import EvaluationPlan

HELP = "judge a policy in closed loop on a fixed list of episodes"


@dataclass(frozen=True)
class Eval:
    """Judge a policy in closed loop on a fixed list of episodes.

    Writes plan.json, episodes.jsonl, summary.json and videos/ to the output folder; run again, it continues there.

    Example: vlarge eval runs/demo/checkpoints/last --env metaworld/reach-v3 --episodes 20 --out runs/reach
    """

    policy: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="POLICY")]
    """A checkpoint folder, hf://user/name, `expert`, `zero`, or module:function of a policy of your own. A checkpoint
    for several embodiments acts as the one that fits, or as the one named in FOLDER#NAME."""
    out: Path
    """The folder of the results."""
    env: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A task, as `vlarge sim list` names it. Repeat the option for several."""
    plan: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A plan.json of another evaluation, to judge on the very same episodes instead of naming tasks."""
    episodes: int = 10
    """Episodes per task."""
    first_init_id: int = 0
    """The number of each task's first episode."""
    seed: int = 0
    workers: int = 2
    """Processes. The result does not depend on it."""
    replan: int = 0
    """Actions executed of each chunk before the policy looks again; 0 is the whole chunk."""
    videos: int = 1
    """Episodes of each task that are filmed."""
    sim: SimConfig = field(default_factory=SimConfig)
    json: bool = False
    """Print the summary as JSON."""


def run(argv: Sequence[str]) -> int:
    from vlarge.evaluate import run as evaluate

    arguments = parse(Eval, argv, "vlarge eval")
    config = EvaluateConfig(
        tasks=arguments.env,
        episodes=arguments.episodes,
        seed=arguments.seed,
        workers=arguments.workers,
        replan=arguments.replan,
        videos=arguments.videos,
    )
    plan = _plan(arguments, config)
    with progress("evaluating", len(plan.keys)) as tell:
        summary = evaluate.run(
            plan,
            _local(arguments.policy),
            arguments.out,
            config,
            on_attempt=lambda attempt: tell(_line(attempt), int(attempt.judged)),
        )
    if arguments.json:
        print_json(summary)
    else:
        _print_summary(summary, arguments.out)
    return 0 if summary["success_rate"] is not None else 1


def _local(policy: str) -> str:
    from vlarge.data import hub

    address, mark, embodiment = policy.partition("#")
    return f"{hub.resolve(address, repo_type='model')}{mark}{embodiment}" if policy.startswith("hf://") else policy


def _plan(arguments: Eval, config: EvaluateConfig) -> EvaluationPlan:
    from vlarge.evaluate.plan import load_plan, make_plan

    if (arguments.plan is None) == (not arguments.env):
        raise InputError("give either --env, for instance --env metaworld/reach-v3, or --plan FILE")
    if arguments.plan is not None:
        return load_plan(arguments.plan)
    return make_plan(config, arguments.sim, first_init_id=arguments.first_init_id)


def _line(attempt: Attempt) -> str:
    line = (
        f"{attempt.task} {attempt.init_id}: {attempt.outcome} after {attempt.num_steps} steps, {attempt.wall_s:.1f} s"
    )
    return f"{line}: {attempt.error}" if attempt.error else line


def _print_summary(summary: dict[str, Any], out: Path) -> None:
    names = {"all": summary} if len(summary["tasks"]) > 1 else {}
    rows = [
        (name, *rate_cells(rates), rates["num_infra_error"] or "") for name, rates in (summary["tasks"] | names).items()
    ]
    columns = ("task", "successes", "rate", "95% interval", "infra errors")
    print_table(f"{summary['metric']} of {summary['policy']}", columns, rows)
    console().print(f"Results: {out}", markup=False)
    if summary["num_infra_error"]:
        console().print(f"What failed besides the policy: {out / 'attempts.jsonl'}", markup=False)
