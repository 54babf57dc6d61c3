"""A policy with mixtures of experts trains, resumes, is saved, and does not depend on how a step is split."""

import json
from pathlib import Path

import pytest
import torch

from vlarge import recipe as recipes
from vlarge.models.moe import mixtures
from vlarge.policy.load import load_policy
from vlarge.recipe import Recipe
from vlarge.train.trainer import Trainer


@pytest.fixture
def sparse(small: Recipe) -> Recipe:
    return recipes.replace(recipes.replace(small, "model.num_experts", 3), "train.balance_weight", 0.1)


def shares(trainer: Trainer) -> torch.Tensor:
    return torch.stack([mixture.share_E for mixture in mixtures(trainer.model)])


def losses(run: Path) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines]


@pytest.mark.long
def test_micro_batches_change_nothing(sparse: Recipe, tmp_path: Path) -> None:
    whole = Trainer(sparse)
    whole.train()
    split = recipes.replace(sparse, "run.dir", str(tmp_path / "split"))
    parts = Trainer(recipes.replace(split, "train.micro_batch_tokens", 170))
    parts.train()
    torch.testing.assert_close(torch.tensor(losses(tmp_path / "split")), torch.tensor(losses(tmp_path / "run")))
    torch.testing.assert_close(shares(whole), shares(parts))
    assert not torch.allclose(shares(whole), torch.tensor(1 / 3))


def test_resume_knows_the_shares(sparse: Recipe, tmp_path: Path) -> None:
    trainer = Trainer(sparse)
    last = trainer.train()
    again = Trainer(sparse, resume=True)
    torch.testing.assert_close(shares(again), shares(trainer), rtol=0, atol=0)
    acting = load_policy(last).model
    averages = trainer.model.state_dict() | trainer.engine.ema.state()
    assert all(torch.equal(value, averages[name]) for name, value in acting.state_dict().items())
    following = recipes.replace(recipes.replace(sparse, "run.dir", str(tmp_path / "next")), "model.init", str(last))
    Trainer(recipes.replace(following, "train.steps", 2)).train()


def test_recomputed_layers_count_their_tokens_once(sparse: Recipe, tmp_path: Path) -> None:
    """π0's states pass the mixtures too, in what is not run again."""
    plain = recipes.replace(recipes.replace(sparse, "model.name", "pi0"), "train.steps", 3)
    again = recipes.replace(recipes.replace(plain, "run.dir", str(tmp_path / "again")), "train.recompute", "layers")
    for recipe in (plain, again):
        Trainer(recipe).train()
    assert losses(tmp_path / "again") == losses(tmp_path / "run")
