"""Packing is exact (law M1) and wastes nothing (law M2)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from vlarge.contracts import PackedBatch, Sample, SampleId
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


def make_samples(num_images: list[int], num_text: list[int], num_actions: list[int], seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        Sample(
            id=SampleId(0, i, 0),
            images={f"camera{n}": rng.integers(0, 256, (32, 32, 3)).astype(np.uint8) for n in range(images)},
            prompt_ids=rng.integers(0, 256, text),
            state_A=rng.standard_normal(2).astype(np.float32),
            actions_SA=rng.standard_normal((actions, 3)).astype(np.float32),
        )
        for i, (images, text, actions) in enumerate(zip(num_images, num_text, num_actions, strict=True))
    ]


def velocity(model: Pi0, batch: PackedBatch, num_draws: int = 1) -> torch.Tensor:
    times, noise = keyed_draws(0, batch.sample_ids_B3, 7, batch.num_actions_B, 3, num_draws)
    return model(batch, torch.from_numpy(noise), torch.from_numpy(times), num_draws)


def test_a_sample_beside_others_equals_the_sample_alone(model: Pi0) -> None:
    samples = make_samples([1, 2, 0, 2, 1], [5, 9, 4, 1, 5], [5, 3, 5, 1, 2])
    batch = pack(samples)
    together = velocity(model, batch).split(batch.num_actions_B.tolist())
    by_id = {int(sample_id[1]): part for sample_id, part in zip(batch.sample_ids_B3, together, strict=True)}
    for sample in samples:
        alone = velocity(model, pack([sample]))
        torch.testing.assert_close(by_id[sample.id.episode], alone, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_batch_are_the_sum_of_its_samples(model: Pi0) -> None:
    samples = make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4])

    # That of a key's bias is zero but for rounding.
    parameters = [p for name, p in model.named_parameters() if not name.endswith(".k.bias")]

    def gradients(batch: PackedBatch) -> list[torch.Tensor]:
        return list(torch.autograd.grad(velocity(model, batch).square().sum(), parameters))

    together = gradients(pack(samples))
    alone = [gradients(pack([sample])) for sample in samples]
    for whole, *parts in zip(together, *alone, strict=True):
        scale = whole.abs().max()
        assert (whole - sum(parts)).abs().max() <= 1e-5 * scale + 1e-7


def test_a_neighbours_content_changes_no_bit(model: Pi0) -> None:
    samples = make_samples([1, 1, 1], [6, 6, 6], [4, 4, 4])
    other = make_samples([1, 1, 1], [6, 6, 6], [4, 4, 4], seed=1)[1]
    before = velocity(model, pack(samples)).split(4)
    after = velocity(model, pack([samples[0], other, samples[2]])).split(4)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.allclose(before[1], after[1])


def test_several_draws_share_one_prefix(model: Pi0) -> None:
    """Each draw of a sample equals a run of its own with that noise and time."""
    batch = pack(make_samples([1, 2], [5, 7], [4, 3]))
    times, noise = keyed_draws(0, batch.sample_ids_B3, 7, batch.num_actions_B, 3, 3)
    together = model(batch, torch.from_numpy(noise), torch.from_numpy(times), 3)
    lengths = np.repeat(batch.num_actions_B, 3).tolist()
    parts, noises = together.split(lengths), torch.from_numpy(noise).split(lengths)
    for draw in range(3):
        rows = [draw, 3 + draw]
        alone = model(batch, torch.cat([noises[r] for r in rows]), torch.from_numpy(times[rows]))
        torch.testing.assert_close(torch.cat([parts[r] for r in rows]), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("max_state_dim", [0, 2])
@pytest.mark.parametrize("preset", ["tiny"])
def test_every_parameter_of_a_preset_is_alive(preset: str, max_state_dim: int) -> None:
    sizes: Pi0Config = replace(PRESETS[preset], max_action_dim=3, max_state_dim=max_state_dim)
    model = Pi0(sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "dense" in name:
                parameter.normal_(std=0.1)
    sample = make_samples([1], [4], [3])[0]
    size = sizes.image_size
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3)).astype(np.uint8)
    batch = pack([replace(sample, images={"camera": image})])
    velocity(model, batch).square().sum().backward()
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []


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
    # The counter does not know the fused CPU attention; it counts the plain one's products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        velocity(model, batch, num_draws=2)
    assert forward_flops(model.config, batch, 2) == pytest.approx(counter.get_total_flops(), rel=1e-6)


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
    """`x[index]` adds its rows' gradients up as threads come to them: on a busy machine in another order."""
    called = set()

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func.overloadpacket.__name__)
            return func(*args, **kwargs or {})

    loss = velocity(model, pack(make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4]))).square().sum()
    with Listener():
        loss.backward()
    assert "index_add" in called or "index_select_backward" in called
    assert not {name for name in called if "index_put" in name}
