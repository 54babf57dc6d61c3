"""The schedule's corner points, decay groups, and the guard against a non-finite update."""

import math
from dataclasses import replace

import pytest
import torch

from vlarge.models.gr00t.config import PRESETS as GROOT
from vlarge.models.gr00t.embodiment import EmbodimentLinear
from vlarge.models.gr00t.model import Groot
from vlarge.models.pi0.config import PRESETS
from vlarge.models.pi0.model import Pi0
from vlarge.train.config import TrainConfig
from vlarge.train.ema import Ema
from vlarge.train.optim import build_optimizer, learning_rate, update


def test_schedule_corner_points() -> None:
    c = TrainConfig(steps=101, warmup_steps=10, lr=1.0, lr_min=0.1)
    assert learning_rate(0, c) == pytest.approx(0.1)
    assert learning_rate(9, c) == pytest.approx(1.0)
    assert learning_rate(10, c) == pytest.approx(1.0)
    assert learning_rate(100, c) == pytest.approx(0.1)
    middle = learning_rate(55, c)
    assert middle == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))


def test_a_run_shorter_than_its_warm_up_still_ends_at_its_top_rate() -> None:
    c = TrainConfig(steps=5, warmup_steps=50, lr=1.0)
    assert learning_rate(4, c) == pytest.approx(1.0)


def test_only_matrices_decay() -> None:
    model = torch.nn.Linear(3, 2)
    decays = {
        p.ndim: g["weight_decay"] for g in build_optimizer(model, TrainConfig()).param_groups for p in g["params"]
    }
    assert decays == {2: 0.01, 1: 0.0}


def test_what_is_no_projection_does_not_decay() -> None:
    sizes = replace(PRESETS["tiny"], max_action_dim=3, max_state_dim=4, num_experts=0)
    names = undecayed(Pi0(sizes))
    assert "vision.positions" in names
    assert all(name.endswith(("bias", "positions")) or "norm" in name for name in names)
    assert not [
        name for name in undecayed(Pi0(replace(sizes, num_experts=4))) if "expert_layers" in name and ".mlp." in name
    ]
    robots = Groot(replace(GROOT["tiny"], max_action_dim=3, max_state_dim=4))
    per_robot = {name for name, each in robots.named_modules() if isinstance(each, EmbodimentLinear)}
    names = undecayed(robots)
    assert {f"{name}.{kind}" for name in per_robot for kind in ("weight", "bias")} < names
    assert {"head.future", "head.positions"} < names


def undecayed(model: torch.nn.Module) -> set[str]:
    _, others = build_optimizer(model, TrainConfig()).param_groups
    assert others["weight_decay"] == 0
    ids = {id(parameter) for parameter in others["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_a_nan_gradient_leaves_the_weights_alone() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(model, TrainConfig())
    before = model.weight.detach().clone()
    model(torch.full((1, 3), math.nan)).sum().backward()
    assert not math.isfinite(update(model, optimizer, 1.0, 1.0))
    assert torch.equal(model.weight, before)
    model(torch.ones(1, 3)).sum().backward()
    assert update(model, optimizer, 1.0, 1.0) > 0
    assert not torch.equal(model.weight, before)


def test_ema_follows_closely_at_first() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    ema = Ema(model, decay=0.9)
    torch.nn.init.ones_(model.weight)
    ema.update(model, step=0)
    assert ema.state["weight"].item() == pytest.approx(0.9)  # decay 1/10
    torch.nn.init.zeros_(model.weight)
    ema.update(model, step=10_000)
    assert ema.state["weight"].item() == pytest.approx(0.81)
