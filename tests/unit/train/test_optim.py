"""The schedule's corner points, decay groups, and the guard against a non-finite update."""

import math
from dataclasses import replace

import pytest
import torch

from vlarge.models.adapt import by_decay
from vlarge.models.gr00t.config import PRESETS as GROOT
from vlarge.models.gr00t.embodiment import EmbodimentLinear
from vlarge.models.gr00t.model import Groot
from vlarge.models.pi0.config import PRESETS
from vlarge.models.pi0.model import Pi0
from vlarge.train.config import TrainConfig
from vlarge.train.ema import Ema
from vlarge.train.optim import Optimizer, learning_rate
from vlarge.train.parallel.weights import squared_norm


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
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    optimizer = Optimizer([model], TrainConfig(weight_decay=0.25))
    (model(torch.ones(1, 3)).sum() * 0).backward()  # with no gradient, decay is all that is left
    optimizer.update(0.5, 1.0, torch.tensor(0.0))
    torch.testing.assert_close(model.weight.detach(), weight * (1 - 0.25 * 0.5))
    assert torch.equal(model.bias, bias)


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
    _, others = by_decay(model)
    ids = {id(parameter) for parameter in others}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_a_nan_gradient_leaves_the_weights_alone() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = Optimizer([model], TrainConfig())
    before = model.weight.detach().clone()
    model(torch.full((1, 3), math.nan)).sum().backward()
    norm = squared_norm(list(model.parameters())).sqrt()
    assert norm.isnan()
    optimizer.update(1.0, 1.0, norm)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    model(torch.ones(1, 3)).sum().backward()
    norm = squared_norm(list(model.parameters())).sqrt()
    assert norm.item() == pytest.approx(8**0.5)
    optimizer.update(1.0, 1.0, norm)
    assert optimizer.state()["weight"]["step"] == 1  # the skipped one does not count
    assert not torch.equal(model.weight, before)


def test_an_update_is_that_of_torch_with_its_clipping() -> None:
    """The same bits, three updates long: clipping and AdamW see the parameter's own memory."""
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    c = TrainConfig(weight_decay=0.1)
    optimizer = Optimizer([ours], c)
    groups = [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=c.betas, fused=True)
    for scale in (10.0, 1.0, 0.01):
        for model in (ours, theirs):
            (scale * model(torch.ones(4, 3)).square()).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()
        reference.zero_grad()
        found = squared_norm(list(ours.parameters())).sqrt()
        assert found.item() == pytest.approx(norm.item(), rel=1e-6)
        optimizer.update(0.1, 1.0, found)
        torch.testing.assert_close(ours.weight, theirs.weight)
        torch.testing.assert_close(ours.bias, theirs.bias)


def test_ema_follows_closely_at_first() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    ema = Ema([model], decay=0.9)
    torch.nn.init.ones_(model.weight)
    ema.update(step=0)
    assert ema.state()["weight"].item() == pytest.approx(0.9)  # decay 1/10
    torch.nn.init.zeros_(model.weight)
    ema.update(step=10_000)
    assert ema.state()["weight"].item() == pytest.approx(0.81)
