"""A trained run: its time is accounted for over a resume, and no secret of the environment is in its directory."""

import json
from pathlib import Path

import pytest

from vlarge import recipe as recipes
from vlarge.recipe import Recipe
from vlarge.train.track.goodput import account
from vlarge.train.track.jsonl import read_lines
from vlarge.train.trainer import Trainer

SECRETS = {
    "SOME_TOKEN": "hunter2-token",
    "AWS_SECRET_ACCESS_KEY": "hunter2-aws",
    "HF_TOKEN": "hunter2-hf",
    "WANDB_API_KEY": "hunter2" * 6,
    "NCCL_MINE": "hunter2-nccl",
}


def test_a_run_with_wandb_keeps_its_account_and_no_secret(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra track")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for key, value in {"track.wandb": "offline", "track.tensorboard": True, "train.steps": 4}.items():
        small = recipes.replace(small, key, value)
    trainer = Trainer(small)
    trainer.recipe = recipes.replace(small, "train.steps", 2)
    trainer.train()
    run = tmp_path / "run"
    with (run / "steps.jsonl").open("a") as file:  # as if killed two steps later
        file.write(json.dumps({"step": 3, "step_s": 2.0, "other_s": 0.5}) + "\n" + '{"step": 4, "st')
    Trainer(small, resume=True).train()
    wandb.teardown()
    steps, events = read_lines(run / "steps.jsonl"), read_lines(run / "events.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    value = account(steps, events)
    assert value.num_starts == 2
    assert value.lost_s["redone"] == 2.5
    assert value.lost_s["save"] > 0
    assert value.lost_s["restore"] > 0
    assert json.loads((run / "goodput.json").read_text())["goodput"] == pytest.approx(value.ratio)
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 2
    files = [path for path in run.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
