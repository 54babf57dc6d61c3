"""Every token goes to its best experts and is never dropped; balance does not depend on how tokens are split."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vlarge.models.language import GatedMLP, LanguageConfig
from vlarge.models.moe import Balance, MixtureOfExperts, mixtures
from vlarge.models.pi0.config import PRESETS
from vlarge.models.pi0.model import Pi0

SIZES = LanguageConfig(width=8, mlp=12, heads=1, kv_heads=1, head_dim=8)


def mixture(num_experts: int = 4, top_k: int = 2) -> MixtureOfExperts:
    torch.manual_seed(0)
    return MixtureOfExperts(SIZES, num_experts, top_k)


def balance_of(model: MixtureOfExperts, *parts: Tensor) -> Balance:
    model.balance = Balance.of_none(len(model.share_E))
    for x_TD in parts:
        model(x_TD)
    return model.balance


def one_by_one(model: MixtureOfExperts, x_TD: Tensor) -> Tensor:
    """The definition: token by token."""
    rows, own = [], model.experts
    for x_D in x_TD:
        probability_E = model.router(x_D).softmax(-1)
        weights, experts = probability_E.topk(model.top_k)
        outputs = [own.down[e] @ (own.activation(own.gate[e] @ x_D) * (own.up[e] @ x_D)) for e in experts.tolist()]
        rows.append(sum(w * y for w, y in zip(weights / weights.sum(), outputs, strict=True)))
    return torch.stack(rows)


@pytest.mark.parametrize(("num_experts", "top_k"), [(4, 2), (5, 1), (3, 3)])
def test_tokens_go_to_their_best_experts(num_experts: int, top_k: int) -> None:
    model, x = mixture(num_experts, top_k), torch.randn(30, 8)
    ours, reference = model(x), one_by_one(model, x)
    torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)
    weight = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad((ours * weight).sum(), list(model.parameters())),
        torch.autograd.grad((reference * weight).sum(), list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert balance_of(model, x).count_E.sum() == 30 * top_k  # none is dropped


def test_one_expert_is_a_plain_feed_forward_part() -> None:
    model, plain, x = mixture(1, 1), GatedMLP(SIZES), torch.randn(5, 8)
    plain.load_state_dict(
        {f"{name}.weight": getattr(model.experts, name)[0].detach() for name in ("gate", "up", "down")}
    )
    torch.testing.assert_close(model(x), plain(x))


def test_an_expert_without_tokens_has_zero_gradient() -> None:
    model = mixture(3, 1)
    with torch.no_grad():
        model.router.weight[2] = -1e3
    model(torch.rand(6, 8)).sum().backward()
    assert model.experts.gate.grad is not None
    assert not model.experts.gate.grad[2].any()
    assert model(torch.zeros(0, 8)).shape == (0, 8)


def test_imbalance_is_one_when_even_and_more_when_not() -> None:
    model, x = mixture(4, 1), torch.randn(64, 8)
    with torch.no_grad():
        model.router.weight.zero_()
        assert balance_of(model, x).imbalance.item() / 64 == pytest.approx(1)
        model.router.weight[0] = 100 * x.mean(0)
        model.settle(torch.tensor([60.0, 2, 1, 1]))
        assert balance_of(model, x * 0 + x.mean(0)).imbalance.item() / 64 > 2


def test_balance_is_the_same_however_a_step_is_split() -> None:
    """Two micro-batches, or two processes, give the sum that one gives, and the same shares for the next step."""
    whole, parts, x = mixture(), mixture(), torch.randn(20, 8)
    for model in (whole, parts):
        model.settle(torch.tensor([4.0, 3, 2, 1]))
    one, two = balance_of(whole, x), balance_of(parts, *x.split([13, 7]))
    torch.testing.assert_close(two.imbalance, one.imbalance)
    for model, balance in ((whole, one), (parts, two)):
        model.settle(balance.count_E)
    torch.testing.assert_close(whole.share_E, parts.share_E)


def test_what_a_backward_pass_runs_again_is_not_counted_again() -> None:
    model, x = mixture(), torch.randn(20, 8, requires_grad=True)
    y = checkpoint(model, x, use_reentrant=False)
    before = model.balance.count_E.clone()
    y.sum().backward()
    assert before.sum() == 40
    assert model.balance.count_E.equal(before)
    model.eval()(x)
    assert model.balance.count_E.equal(before)


def test_the_balance_loss_spreads_tokens() -> None:
    model, x = mixture(4, 1), torch.randn(256, 8) + 1
    model.balance_weight = 1 / len(x)
    optimizer = torch.optim.SGD(model.router.parameters(), lr=0.5)
    before = None
    for _ in range(300):
        (0 * model(x).sum()).backward()
        before = before if before is not None else model.balance.count_E
        optimizer.step()
        optimizer.zero_grad()
        model.settle(model.balance.count_E)
    assert before is not None
    assert model.share_E.max() < before.max() / before.sum()
    assert model.share_E.max() < 0.4


def test_a_policy_of_mixtures_has_them_in_every_expert_layer() -> None:
    sizes = replace(PRESETS["tiny"], max_action_dim=3, num_experts=4)
    model = Pi0(sizes)
    assert len(mixtures(model)) == sizes.depth
    assert mixtures(Pi0(replace(sizes, num_experts=0))) == []
