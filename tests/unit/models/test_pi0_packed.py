"""Packing is exact (law M1) and wastes nothing (law M2)."""

from dataclasses import replace

import numpy as np
import packing
import pytest
import torch
from packing import make_samples

from vlarge.data.pack import pack
from vlarge.models.flow import keyed_draws
from vlarge.models.pi0.config import PRESETS, Pi0Config
from vlarge.models.pi0.flops import forward_flops
from vlarge.models.pi0.model import Pi0

SIZES = replace(
    PRESETS["tiny"],
    width=32,
    mlp=48,
    depth=2,
    heads=4,
    head_dim=8,
    expert_width=16,
    expert_mlp=24,
    vision_width=24,
    vision_mlp=32,
    vision_depth=2,
    image_size=32,
    action_horizon=5,
    max_action_dim=3,
)


@pytest.fixture(scope="module", params=[0, 4], ids=["pi05", "pi0"])
def model(request: pytest.FixtureRequest) -> Pi0:
    torch.manual_seed(0)
    model = Pi0(replace(SIZES, max_state_dim=request.param))
    with torch.no_grad():  # open the gates, or the prefix would not show
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def test_a_sample_beside_others_equals_the_sample_alone(model: Pi0) -> None:
    packing.check_alone(model, make_samples([1, 2, 0, 2, 1], [5, 9, 4, 1, 5], [5, 3, 5, 1, 2]))


def test_gradients_of_a_batch_are_the_sum_of_its_samples(model: Pi0) -> None:
    packing.check_gradients_add_up(model, make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4]))


def test_a_neighbours_content_changes_no_bit(model: Pi0) -> None:
    packing.check_neighbours_do_not_matter(model)


def test_several_draws_share_one_prefix(model: Pi0) -> None:
    packing.check_draws(model, pack(make_samples([1, 2], [5, 7], [4, 3])))


@pytest.mark.parametrize("max_state_dim", [0, 2])
@pytest.mark.parametrize("preset", ["tiny"])
def test_every_parameter_of_a_preset_is_alive(preset: str, max_state_dim: int) -> None:
    sizes: Pi0Config = replace(PRESETS[preset], max_action_dim=3, max_state_dim=max_state_dim)
    model = Pi0(sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "dense" in name:
                parameter.normal_(std=0.1)
    batch = pack(make_samples([1], [4], [3], image_size=sizes.image_size))
    assert packing.dead_parameters(model, batch) == []


def test_noise_belongs_to_the_sample_not_to_the_batch() -> None:
    ids = np.array([[0, 1, 2], [0, 5, 9]])
    times, noise = keyed_draws(3, ids, 11, np.array([2, 4]), 3)
    swapped_times, swapped_noise = keyed_draws(3, ids[::-1], 11, np.array([4, 2]), 3)
    assert np.array_equal(times, swapped_times[::-1])
    assert np.array_equal(noise[:2], swapped_noise[4:])
    assert not np.array_equal(noise, keyed_draws(3, ids, 12, np.array([2, 4]), 3)[1])
    assert np.isfinite(times).all()
    assert ((times > 0) & (times <= 1)).all()


def test_counted_flops_match_the_profiler(model: Pi0) -> None:
    batch = pack(make_samples([1, 2], [5, 7], [4, 3]))
    packing.check_flops(model, forward_flops, batch)


def test_neighbouring_values_start_alike_and_dimensions_apart() -> None:
    torch.manual_seed(0)
    model = Pi0(SIZES)
    before = model.embed.weight.clone()
    model.embed_in_order(np.arange(100, 300).reshape(2, 100))
    rows = torch.nn.functional.normalize(model.embed.weight[100:300].detach(), dim=1).unflatten(0, (2, 100))
    near, far = (torch.nn.functional.cosine_similarity(rows[0, :-n], rows[0, n:]).mean() for n in (1, 60))
    across = torch.nn.functional.cosine_similarity(rows[0], rows[1]).mean()
    assert near > far + 0.2
    assert near > across + 0.2
    np.testing.assert_allclose(rows.square().sum(-1).mean().item(), 1.0, rtol=1e-5)
    torch.testing.assert_close(model.embed.weight[:100], before[:100], rtol=0, atol=0)
    model.embed_in_order(np.zeros((0, 0), np.int64))


def test_gradients_are_added_up_in_one_order(model: Pi0) -> None:
    packing.check_order_of_sums(model, pack(make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4])))
