"""`vlarge gate`: the verdict is the exit code."""

import json
from pathlib import Path

import pytest

from vlarge.cli import main as cli
from vlarge.contracts import EnvSpec, EpisodeKey
from vlarge.evaluate.plan import EvaluationPlan
from vlarge.evaluate.summary import summarize
from vlarge.sim.config import SimConfig

SPEC = EnvSpec(
    task="toy/push",
    instruction="push",
    cameras={"observation.images.top": (8, 8)},
    state_names=("x",),
    action_names=("x",),
    action_low=(-1.0,),
    action_high=(1.0,),
    action_convention="delta",
    control_hz=10.0,
    horizon=5,
    metric="success_once",
    render_quality="fast",
    reset_mode="seeded",
    simulator="toy 1",
)


def results(folder: Path, successes: list[bool]) -> Path:
    """An evaluation's folder with these outcomes."""
    keys = tuple(EpisodeKey(SPEC.task, number, 0) for number in range(len(successes)))
    plan = EvaluationPlan(keys=keys, specs={SPEC.task: SPEC}, sim=SimConfig(), replan=0)
    folder.mkdir()
    plan.save(folder / "plan.json")
    lines = [
        {**key._asdict(), "outcome": "success" if won else "failure", "num_steps": 5, "success_at_reset": False}
        for key, won in zip(keys, successes, strict=True)
    ]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summarize(lines, plan, folder.name)))
    return folder


@pytest.mark.parametrize(
    ("baseline", "candidate", "verdict", "code"),
    [
        ([False] * 10, [True] * 10, "promote", 0),
        ([True] * 10, [False] * 10, "reject", 1),
        ([True] * 10, [True] * 10, "undecided", 3),
    ],
)
def test_the_verdict_is_the_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    baseline: list[bool],
    candidate: list[bool],
    verdict: str,
    code: int,
) -> None:
    folders = [str(results(tmp_path / "before", baseline)), str(results(tmp_path / "after", candidate))]
    assert cli.main(["gate", *folders, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict
    assert cli.main(["gate", *folders]) == code
    assert verdict in capsys.readouterr().out


def test_a_folder_without_results_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gate", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} holds no finished evaluation")
