"""Fine-tuning a part of a model: what is frozen stays, adapters resume, what no loss depends on is told and left."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.data.pack import pack
from vlarge.models.adapt import ADAPTERS, merged
from vlarge.policy.load import load_policy
from vlarge.recipe import Recipe
from vlarge.train.fit import blank_sample
from vlarge.train.trainer import Trainer


def changed(recipe: Recipe, **settings: object) -> Recipe:
    for key, value in settings.items():
        recipe = recipes.replace(recipe, key.replace("__", "."), value)
    return recipe


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def test_frozen_parts_stay_and_are_saved(small: Recipe, tmp_path: Path) -> None:
    trainer = Trainer(changed(small, model__freeze=("vision", "language")))
    assert trainer.audit.trainable["vision"] == trainer.audit.trainable["language"] == 0
    assert trainer.audit.frozen["expert"] == 0
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    acting = load_policy(tmp_path / "run").model.state_dict()
    moved = {name for name, value in acting.items() if not torch.equal(value, before[name])}
    assert moved == {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert all(parameter.grad is None for parameter in trainer.model.vision.parameters())


def test_adapters_resume_bit_for_bit_and_are_added_in(small: Recipe, tmp_path: Path) -> None:
    recipe = changed(small, model__freeze=("vision", "language", "expert"), model__lora_rank=2, model__lora_alpha=6.0)
    trainer = Trainer(recipe)
    trainer.train()
    parts = changed(recipe, run__dir=str(tmp_path / "parts"))
    first = Trainer(parts)
    first.checkpoints.begin = killed_after_one(first.checkpoints.begin)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="killed"):
        first.train()
    resumed = Trainer(parts, resume=True)
    assert resumed.step == 3
    resumed.train()
    whole, again = weights(tmp_path / "run"), weights(tmp_path / "parts")
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert not any(name.endswith(ADAPTERS) for name in whole)
    acting, name = load_policy(tmp_path / "run").model.state_dict(), "expert_layers.0.query.q.weight"
    averages = trainer.model.state_dict() | trainer.engine.ema.state()
    assert torch.equal(acting[name], merged(averages, 6.0 / 2)[name])
    assert not torch.equal(acting[name], trainer.model.get_parameter(name))


def killed_after_one(save: Callable[..., None]) -> Callable[..., None]:
    saved = []

    def wrapped(*args: Any, **more: Any) -> None:
        if saved:
            raise RuntimeError("killed")
        saved.append(True)
        save(*args, **more)

    return wrapped


def test_without_cameras_the_vision_tower_is_told_and_left(
    small: Recipe, tmp_path: Path, make_datasets: ModuleType
) -> None:
    blind = tmp_path / "blind"
    spec = make_datasets.Spec("v2.1", episodes=3, length="8:12", cameras="", state_dim=3, action_dim=5)
    make_datasets.make(blind, spec)
    trainer = Trainer(changed(small, data__path=str(blind), train__steps=2))
    assert trainer.audit.trainable["vision"] == 0
    assert all(name.startswith(("vision.", "projector.")) for name in trainer.audit.dead)
    dead = next(line for line in trainer.audit.lines() if line.startswith("dead"))
    assert "vision.blocks.#.norm1.weight" in dead
    assert "kinds more" in dead
    left = {name for name, parameter in trainer.model.named_parameters() if not parameter.requires_grad}
    assert left == set(trainer.audit.dead)  # no process waits for their gradients, no average of them is kept
    before = trainer.model.vision.patch_embed.weight.clone()
    trainer.train()
    assert trainer.model.vision.patch_embed.weight.equal(before)


def test_the_audit_counts_and_finds_nothing_dead(small: Recipe) -> None:
    trainer = Trainer(small)
    audit = trainer.audit
    assert audit.dead == ()
    assert sum(audit.trainable.values()) == sum(p.numel() for p in trainer.model.parameters())
    batch = pack([blank_sample(trainer.plan.preparations[0])])
    flops = trainer._family.forward_flops(trainer.plan.sizes, batch, small.train.suffixes_per_prefix)
    assert audit.forward_flops == flops > 0
    assert audit.lines()[2] == "dead       none"
    assert audit.lines()[3].endswith("FLOP forward per sample")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("eager", "no attention backend 'eager'; there are auto, dense, flash, flex, sdpa"),
        ("flash", "attention backend 'flash' needs a CUDA device, not cpu"),
        ("flex", "attention backend 'flex' computes no gradients on a CPU"),
    ],
)
def test_an_attention_that_cannot_train_here_is_refused(small: Recipe, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"model.attention is '{name}': {reason}; choose 'auto'"):
        Trainer(changed(small, model__attention=name))


def test_a_run_with_nothing_left_to_train_writes_nothing(small: Recipe, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing is left to train: leave a part out of model\.freeze"):
        Trainer(changed(small, model__freeze=["vision", "language", "expert"]))
    assert not (tmp_path / "run").exists()


def test_another_model_is_no_resume(small: Recipe) -> None:
    began = changed(small, model__lora_rank=2, train__steps=1)
    Trainer(began).train()
    longer = changed(began, train__steps=2)
    for name, value, words in (
        ("lora_alpha", 64.0, "model.lora_alpha was 0.0 when this run began and is 64.0"),
        ("freeze", ["vision"], r"model.freeze was \(\) when this run began and is \('vision',\)"),
        ("lora_rank", 3, "model.lora_rank was 2 when this run began and is 3"),
    ):
        with pytest.raises(InputError, match=words + ": resume with the value it had"):
            Trainer(recipes.replace(longer, f"model.{name}", value), resume=True)
    Trainer(changed(longer, model__attention="sdpa"), resume=True).train()
