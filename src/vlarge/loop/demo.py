"""The whole loop, small, on a CPU: record experts → train → evaluate → gate → report.

Three disjoint ranges of episode keys are used: demonstrations start at init id `FIRST_RECORDED`, judging at 0. Recipes
were tuned on seeds from 100 up, and are judged on seeds 0, 1 and 2.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.evaluate.plan import EvaluationPlan, make_plan
from vlarge.evaluate.run import run as evaluate
from vlarge.evaluate.verdict import gate
from vlarge.loop.record import record
from vlarge.loop.report import write_report
from vlarge.policy.lerobot import write_json
from vlarge.recipe import Recipe
from vlarge.train.run_dir import check_no_file
from vlarge.train.trainer import Trainer

FIRST_RECORDED = 10_000
# A judged step's time as a share of a recorded frame's, measured: half of the episodes end early, and only every fifth
# step is rendered, but a policy thinks there.
JUDGED_STEP_COST = 0.72
MIN_TRAINING_S = 30.0
Say = Callable[[str], None]


class _StageClock:
    """Wall seconds of each stage; says what begins."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._start_s = time.perf_counter()
        self.stages_s: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        return time.perf_counter() - self._start_s

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        start_s = time.perf_counter()
        self._say(f"[{self.total_s:4.0f} s] {name}: {what}")
        yield
        self.stages_s[name] = time.perf_counter() - start_s


def shipped_recipe(overrides: Mapping[str, object]) -> Recipe:
    """recipes/demo.toml, which travels with the package, and what the command line changes."""
    with as_file(files("vlarge.loop") / "demo.toml") as path:
        return recipes.load([path], overrides)


def demo_recipe(recipe: Recipe, *, seed: int, run_dir: Path) -> Recipe:
    """The recipe of one demo run: everything random follows from `seed`, everything written lies in `run_dir`."""
    for key, value in {
        "run.dir": str(run_dir),
        "run.seed": seed,
        "evaluate.seed": seed,
        "data.path": str(run_dir / "data"),
    }.items():
        recipe = recipes.replace(recipe, key, value)
    return recipe


def run_demo(recipe: Recipe, say: Say = lambda line: None) -> dict[str, Any]:
    """Run the loop; returns what demo.json holds. Raises InputError if the run directory is in use."""
    run_dir = Path(recipe.run.dir)
    check_no_file(run_dir)
    if run_dir.exists() and any(run_dir.iterdir()):
        raise InputError(f"{run_dir} is not empty: remove it, or choose another --run.dir")
    clock = _StageClock(say)
    with clock.stage(
        "record", f"{recipe.record.episodes} demonstrations of each of {len(recipe.evaluate.tasks)} tasks"
    ):
        num_frames = _record(recipe)
    recipe = fit_training(recipe, record_s=clock.stages_s["record"], num_frames=num_frames)
    with clock.stage("train", f"up to {recipe.train.steps} steps of {recipe.train.batch_size} samples"):
        trainer = Trainer(recipe)
        untrained = trainer.save()
        trained = trainer.train()
        num_steps = trainer.step
        if not trainer.finished:
            raise KeyboardInterrupt  # the trainer saved and left; nobody waits for a verdict on half a training
    if num_steps < recipe.train.steps:
        say(f"         {num_steps} of {recipe.train.steps} steps fitted into this machine's time")
    plan = make_plan(recipe.evaluate, recipe.sim)
    with clock.stage("baseline", f"the untrained policy, {len(plan.keys)} episodes"):
        _judge(plan, untrained, recipe, videos=0)
    with clock.stage("evaluate", f"the trained policy, the same {len(plan.keys)} episodes"):
        summary = _judge(plan, trained, recipe, videos=recipe.evaluate.videos)
    with clock.stage("gate", "trained against untrained"):
        verdict = _gate(untrained, trained, recipe)
    with clock.stage("report", "report.html"):
        write_json(run_dir / "demo.json", _result(recipe, num_steps, summary, verdict, clock))
        write_report(run_dir)
    result = _result(recipe, num_steps, summary, verdict, clock)
    write_json(run_dir / "demo.json", result)
    return result


def _record(recipe: Recipe) -> int:
    """Returns the number of frames recorded."""
    lengths: list[int] = []
    record(
        recipe.evaluate.tasks,
        recipe.sim,
        Path(recipe.data.path),
        episodes_per_task=recipe.record.episodes,
        seed=recipe.run.seed,
        first_init_id=FIRST_RECORDED,
        workers=recipe.evaluate.workers,
        tail_steps=recipe.record.tail_steps,
        action_noise=recipe.record.action_noise,
        noise_hold_steps=recipe.record.noise_hold_steps,
        on_episode=lambda episode: lengths.append(len(episode.actions)),
    )
    return sum(lengths)


def fit_training(recipe: Recipe, *, record_s: float, num_frames: int) -> Recipe:
    """The recipe with `train.max_time_s` lowered to what `loop.max_time_s` leaves for training on this machine.

    Recording has just told how fast it simulates and renders; judging is the same work on the same processes.
    """
    if not recipe.loop.max_time_s:
        return recipe
    num_judged_steps = 2 * len(recipe.evaluate.tasks) * recipe.evaluate.episodes * recipe.sim.horizon
    judge_s = JUDGED_STEP_COST * num_judged_steps * record_s / num_frames
    left_s = max(recipe.loop.max_time_s - record_s - judge_s, MIN_TRAINING_S)
    return recipes.replace(recipe, "train.max_time_s", min(left_s, recipe.train.max_time_s or left_s))


def _judge(plan: EvaluationPlan, checkpoint: Path, recipe: Recipe, *, videos: int) -> dict[str, Any]:
    settings = dataclasses.replace(recipe.evaluate, videos=videos)
    return evaluate(plan, str(checkpoint), results_of(checkpoint, recipe), settings)


def results_of(checkpoint: Path, recipe: Recipe) -> Path:
    """The evaluation folder of a checkpoint of this run."""
    return Path(recipe.run.dir) / "eval" / checkpoint.name


def _gate(untrained: Path, trained: Path, recipe: Recipe) -> dict[str, Any]:
    verdict = gate(results_of(untrained, recipe), results_of(trained, recipe), recipe.evaluate.alpha)
    folder = Path(recipe.run.dir) / "gate"
    folder.mkdir()
    write_json(folder / f"{trained.name}.json", verdict)
    return verdict


def _result(
    recipe: Recipe, num_steps: int, summary: dict[str, Any], verdict: dict[str, Any], clock: _StageClock
) -> dict[str, Any]:
    return {
        "seed": recipe.run.seed,
        "steps": num_steps,
        "planned_steps": recipe.train.steps,
        "success_rate": summary["success_rate"],
        "num_success": summary["num_success"],
        "num_episodes": summary["num_episodes"],
        "wilson95": summary["wilson95"],
        "verdict": verdict["verdict"],
        "loop_s": round(clock.total_s, 1),
        "stages_s": {name: round(value, 1) for name, value in clock.stages_s.items()},
    }
