"""SmolVLA packed is exact (law M1) and wastes nothing (law M2); and what is its own: causal actions, parts, sizes."""

from dataclasses import replace

import numpy as np
import packing
import pytest
import torch
from packing import make_samples, velocity

from vlarge.contracts import InputError
from vlarge.data.pack import pack
from vlarge.models.config import ModelConfig
from vlarge.models.smolvla.config import PRESETS, resolve
from vlarge.models.smolvla.connector import squares
from vlarge.models.smolvla.flops import forward_flops
from vlarge.models.smolvla.model import SmolVLA

SIZES = replace(
    PRESETS["tiny"],
    width=32,
    mlp=48,
    depth=3,
    heads=4,
    head_dim=8,
    expert_width=24,
    expert_mlp=40,
    vision_width=24,
    vision_mlp=32,
    vision_depth=2,
    patch=8,
    image_size=32,
    action_horizon=5,
    max_action_dim=3,
    max_state_dim=2,
)


@pytest.fixture(scope="module")
def model() -> SmolVLA:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmolVLA(SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def test_a_sample_beside_others_equals_the_sample_alone(model: SmolVLA) -> None:
    """Also without an image, without a word, and without either."""
    packing.check_alone(model, make_samples([1, 2, 0, 2, 1, 0], [5, 9, 4, 0, 5, 0], [5, 3, 5, 1, 2, 4]))


def test_gradients_of_a_batch_are_the_sum_of_its_samples(model: SmolVLA) -> None:
    packing.check_gradients_add_up(model, make_samples([1, 2, 0], [5, 9, 6], [5, 3, 4]))


def test_a_neighbours_content_changes_no_bit(model: SmolVLA) -> None:
    packing.check_neighbours_do_not_matter(model)


def test_several_draws_share_one_context(model: SmolVLA) -> None:
    packing.check_draws(model, pack(make_samples([1, 2, 1], [5, 7, 0], [4, 3, 1])))


@pytest.mark.parametrize("depth", [3, 4])
def test_counted_flops_match_the_profiler(depth: int) -> None:
    """Whether the last layer's actions see each other or not."""
    batch = pack(make_samples([1, 2], [5, 7], [4, 3]))
    packing.check_flops(SmolVLA(replace(SIZES, depth=depth)), forward_flops, batch)


def test_gradients_are_added_up_in_one_order(model: SmolVLA) -> None:
    packing.check_order_of_sums(model, pack(make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4])))


def test_every_parameter_of_a_preset_is_alive_and_belongs_to_one_part() -> None:
    model = SmolVLA(resolve(ModelConfig(name="smolvla"), vocab_size=261, state_dim=2, action_dim=3))
    batch = pack(make_samples([1], [4], [3], image_size=model.config.image_size))
    assert packing.dead_parameters(model, batch) == []
    for name, _ in model.named_parameters():
        parts = [part for part, beginnings in SmolVLA.PARTS.items() if name.startswith(beginnings)]
        assert len(parts) == 1, f"{name} is in {parts}"
    beginnings = [b for group in SmolVLA.PARTS.values() for b in group]
    assert [b for b in beginnings if not any(n.startswith(b) for n, _ in model.named_parameters())] == []


@pytest.mark.parametrize("changed", range(1, 5))
def test_a_later_action_changes_no_earlier_velocity(model: SmolVLA, changed: int) -> None:
    batch = pack(make_samples([1, 1], [5, 5], [5, 5]))
    noise, times = packing.draws(model, batch)
    before = model(batch, noise, times).split(5)
    noise[changed] += 1
    after = model(batch, noise, times).split(5)
    torch.testing.assert_close(before[0][:changed], after[0][:changed], rtol=0, atol=0)
    assert ((before[0] - after[0])[changed:].abs().amax(1) > 1e-4).all()
    assert torch.equal(before[1], after[1])


def test_the_state_is_seen_by_the_actions_only(model: SmolVLA) -> None:
    """Keys and values of images and text stay as they are; the velocities do not."""
    batch = pack(make_samples([1, 1], [5, 5], [4, 4]))
    other = replace(batch, state_BA=batch.state_BA + 1)
    layout = model.lay_out(batch, 1)
    before, after = (model.encode_context(each, layout) for each in (batch, other))
    num_prefix = layout.prefix.num_queries
    for layer in (0, 2):  # those whose keys and values stay in the order of [prefix; states]
        for one, another in zip(before[layer], after[layer], strict=True):
            assert torch.equal(one[:num_prefix], another[:num_prefix])
            assert not torch.isclose(one[num_prefix:], another[num_prefix:]).all()
    assert not torch.allclose(velocity(model, batch), velocity(model, other))


def test_squares_of_patches_keep_their_place() -> None:
    """Rows of squares, each with its patches row by row."""
    grid = torch.arange(2 * 16.0).reshape(2, 4, 4)
    found = squares(grid.reshape(-1, 1), 4, 2)
    expected = [image[r : r + 2, c : c + 2].reshape(-1) for image in grid for r in (0, 2) for c in (0, 2)]
    assert torch.equal(found, torch.stack(expected))


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(InputError, match="image_size 40 is not a multiple of 16"):
        replace(SIZES, image_size=40)
    with pytest.raises(InputError, match="states have 33 dimensions, the model takes at most 32"):
        resolve(ModelConfig(name="smolvla", preset="base"), vocab_size=9, state_dim=33, action_dim=3)
    with pytest.raises(InputError, match="'huge' does not exist: choose one of tiny, base"):
        resolve(ModelConfig(name="smolvla", preset="huge"), vocab_size=9, state_dim=3, action_dim=3)


def test_images_and_words_start_alike() -> None:
    """None drowns the other before training."""
    torch.manual_seed(0)
    model = SmolVLA(replace(PRESETS["tiny"], max_action_dim=3, max_state_dim=2))
    batch = pack(make_samples([1], [9], [3], image_size=96))
    tokens = model.embed_prefix(batch, model.lay_out(batch, 1)).square().mean(1).sqrt()
    np.testing.assert_allclose(tokens.detach(), 1, atol=0.4)
