"""Packing GR00T is exact (law M1) and wastes nothing (law M2)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from groot_reference import dense
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from vlarge.contracts import InputError, PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models.flow import GROOT_FLOW, keyed_draws
from vlarge.models.gr00t import forward_flops
from vlarge.models.gr00t.config import PRESETS, GrootConfig
from vlarge.models.gr00t.model import Groot

MARKER = 200
SIZES = replace(
    PRESETS["tiny"],
    vocab_size=256,
    image_token=MARKER,
    width=32,
    mlp=48,
    heads=4,
    head_dim=8,
    vision_width=24,
    vision_mlp=32,
    image_size=32,
    vl_heads=2,
    dit_heads=2,
    dit_head_dim=8,
    head_width=12,
    future_tokens=3,
    num_embodiments=5,
    action_horizon=5,
    max_action_dim=3,
    max_state_dim=4,
)


def new_model(sizes: GrootConfig) -> Groot:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Groot(sizes)
    with torch.no_grad():  # what starts at zero or one moves off it
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.fixture(scope="module", params=[4, 5], ids=["own_last", "cross_last"])
def model(request: pytest.FixtureRequest) -> Groot:
    return new_model(replace(SIZES, dit_depth=request.param))


def make_samples(
    num_images: Sequence[int], num_text: Sequence[int], num_actions: Sequence[int], seed: int = 0, robots: Any = None
) -> list[Sample]:
    rng = np.random.default_rng(seed)
    robots = robots or rng.integers(0, SIZES.num_embodiments, len(num_images))
    return [
        Sample(
            id=SampleId(0, i, 0),
            images={f"camera{n}": rng.integers(0, 256, (32, 32, 3)).astype(np.uint8) for n in range(images)},
            prompt_ids=rng.integers(0, MARKER, text),
            state_A=rng.standard_normal(2).astype(np.float32),
            actions_SA=rng.standard_normal((actions, 3)).astype(np.float32),
            embodiment=int(robot),
        )
        for i, (images, text, actions, robot) in enumerate(zip(num_images, num_text, num_actions, robots, strict=True))
    ]


def velocity(model: Groot, batch: PackedBatch, num_draws: int = 1) -> Tensor:
    times, noise = drawn(batch, num_draws)
    return model(batch, noise, times, num_draws)


def drawn(batch: PackedBatch, num_draws: int = 1) -> tuple[Tensor, Tensor]:
    drawn = keyed_draws(0, batch.sample_ids_B3, 7, batch.num_actions_B, 3, num_draws, GROOT_FLOW)
    return torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])


RAGGED = [1, 2, 0, 2, 1, 3], [5, 9, 4, 0, 5, 1], [5, 3, 5, 1, 2, 4]  # images, text, actions


def test_velocities_equal_the_definition(model: Groot) -> None:
    """With missing cameras, an empty instruction, several robots, and markers here and there."""
    samples = make_samples(*RAGGED)
    samples[1].prompt_ids[[2, 5]] = MARKER
    samples[5].prompt_ids[0] = MARKER
    batch = pack(samples)
    times, noise = drawn(batch)
    torch.testing.assert_close(velocity(model, batch), dense(model, batch, noise, times), rtol=1e-5, atol=1e-5)


def test_a_sample_beside_others_equals_the_sample_alone(model: Groot) -> None:
    samples = make_samples(*RAGGED)
    batch = pack(samples)
    together = velocity(model, batch).split(batch.num_actions_B.tolist())
    by_id = {int(sample_id[1]): part for sample_id, part in zip(batch.sample_ids_B3, together, strict=True)}
    for sample in samples:
        alone = velocity(model, pack([sample]))
        torch.testing.assert_close(by_id[sample.id.episode], alone, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_batch_are_the_sum_of_its_samples(model: Groot) -> None:
    samples = make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4], robots=[0, 3, 0])

    # That of a key's bias is zero but for rounding.
    parameters = [p for name, p in model.named_parameters() if not name.endswith(".k.bias")]

    def gradients(batch: PackedBatch) -> list[Tensor]:
        return list(torch.autograd.grad(velocity(model, batch).square().sum(), parameters))

    together = gradients(pack(samples))
    alone = [gradients(pack([sample])) for sample in samples]
    for whole, *parts in zip(together, *alone, strict=True):
        assert (whole - sum(parts)).abs().max() <= 1e-5 * whole.abs().max() + 1e-7


def test_a_neighbours_content_changes_no_bit(model: Groot) -> None:
    samples = make_samples([1, 1, 1], [6, 6, 6], [4, 4, 4], robots=[2, 2, 1])
    other = make_samples([1, 1, 1], [6, 6, 6], [4, 4, 4], seed=1, robots=[2, 2, 1])[1]
    before = velocity(model, pack(samples)).split(4)
    after = velocity(model, pack([samples[0], other, samples[2]])).split(4)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.allclose(before[1], after[1])


def test_several_draws_share_their_samples_features(model: Groot) -> None:
    """Each draw of a sample equals a run of its own with that noise and time."""
    batch = pack(make_samples([1, 2], [5, 7], [4, 3]))
    times, noise = drawn(batch, 3)
    together = model(batch, noise, times, 3)
    lengths = np.repeat(batch.num_actions_B, 3).tolist()
    parts, noises = together.split(lengths), noise.split(lengths)
    for draw in range(3):
        rows = [draw, 3 + draw]
        alone = model(batch, torch.cat([noises[r] for r in rows]), times[rows])
        torch.testing.assert_close(torch.cat([parts[r] for r in rows]), alone, rtol=1e-5, atol=1e-5)


def test_padding_is_attended_to_on_request_only(model: Groot) -> None:
    """What the released code computes for a batch filled up to its longest text, where fill is a query of nothing."""
    filled = Groot(replace(model.config, attend_padding=True))
    filled.load_state_dict(model.state_dict())
    batch = pack(make_samples([1, 2, 1], [5, 9, 2], [5, 3, 4]))
    times, noise = drawn(batch)
    ours = velocity(filled, batch)
    torch.testing.assert_close(ours, dense(filled, batch, noise, times), rtol=1e-5, atol=1e-5)
    differs = (ours - velocity(model, batch)).abs() > 1e-3
    longest = batch.num_actions_B[-1]
    assert differs[:-longest].any(1).all()
    assert not differs[-longest:].any()


def test_an_image_stands_where_its_marker_does(model: Groot) -> None:
    """At the beginning one changes nothing, elsewhere it moves its image; two images may change places."""
    (sample,) = make_samples([2], [6], [3])
    plain = velocity(model, pack([sample]))

    def marked(*ids: Any, swapped: bool = False) -> Tensor:
        words = sample.prompt_ids.tolist()
        images = dict(reversed(sample.images.items())) if swapped else sample.images
        prompt = np.array([MARKER if i == "image" else words[i] for i in ids])
        return velocity(model, pack([replace(sample, prompt_ids=prompt, images=images)]))

    assert torch.equal(marked("image", "image", 0, 1, 2, 3, 4, 5), plain)
    assert torch.equal(marked("image", 0, 1, 2, 3, 4, 5), plain)
    moved = marked(0, 1, "image", 2, 3, 4, 5)
    assert not torch.allclose(moved, plain, atol=1e-4)
    assert torch.equal(marked("image", 0, 1, "image", 2, 3, 4, 5), moved)
    assert not torch.allclose(marked(0, 1, "image", 2, 3, 4, 5, swapped=True), moved, atol=1e-4)


def test_more_markers_than_images_are_refused(model: Groot) -> None:
    samples = make_samples([1, 1], [3, 4], [2, 2])
    samples[1].prompt_ids[1:3] = MARKER
    with pytest.raises(InputError, match=r"sample \(0, 1, 0\) .* has 2 image markers for 1 images"):
        velocity(model, pack(samples))


def test_every_parameter_of_a_preset_is_alive_and_in_one_part() -> None:
    sizes = replace(PRESETS["tiny"], max_action_dim=3, max_state_dim=2)
    model = new_model(sizes)
    image = np.random.default_rng(0).integers(0, 256, (sizes.image_size, sizes.image_size, 3)).astype(np.uint8)
    samples = make_samples([1] * 4, [4] * 4, [sizes.action_horizon] * 4, robots=[0, 1, 2, 3])
    velocity(model, pack([replace(s, images={"camera": image}) for s in samples])).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    of_robots = [p.grad.flatten(1).any(1) for p in parameters_of_robots(model)]
    assert len(of_robots) == 14
    assert all(alive.all() for alive in of_robots)
    assert model.head.positions.grad.any(1).all()
    beginnings = [beginning for part in Groot.PARTS.values() for beginning in part]
    for name, _ in model.named_parameters():
        assert sum(name.startswith(beginning) for beginning in beginnings) == 1, name


def parameters_of_robots(model: Groot) -> list[torch.nn.Parameter]:
    return [p for name, p in model.named_parameters() if "coder" in name]


def test_robots_that_are_not_there_have_zero_gradients(model: Groot) -> None:
    model.zero_grad()
    velocity(model, pack(make_samples([1, 1], [4, 3], [3, 5], robots=[1, 3]))).square().sum().backward()
    for parameter in parameters_of_robots(model):
        assert parameter.grad is not None
        assert parameter.grad.flatten(1).any(1).tolist() == [False, True, False, True, False]
    model.zero_grad()


def test_a_batch_of_no_samples_has_gradients_of_zero(model: Groot) -> None:
    (velocity(model, pack([])).sum() * 1).backward()
    grads = {name: p.grad for name, p in model.named_parameters() if not name.startswith("backbone.vision.")}
    assert not any(grad is not None and grad.any() for grad in grads.values())
    model.zero_grad()


@pytest.mark.parametrize("attend_padding", [False, True])
def test_counted_flops_match_the_profiler(model: Groot, attend_padding: bool) -> None:
    model = Groot(replace(model.config, attend_padding=attend_padding))
    samples = make_samples([1, 2, 0], [5, 7, 3], [4, 3, 5])
    samples[1].prompt_ids[2] = MARKER
    batch = pack(samples)
    # The counter does not know the fused CPU attention; it counts the plain one's products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        velocity(model, batch, num_draws=2)
    assert forward_flops(model.config, batch, 2) == pytest.approx(counter.get_total_flops(), rel=1e-6)


def test_sampling_makes_keys_of_the_features_once(model: Groot) -> None:
    batch = pack(make_samples([1, 2], [5, 7], [5, 5]))
    calls: dict[str, int] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _in, _out, name=name: calls.update({name: calls.get(name, 0) + 1}))
    model.sample(batch, torch.randn(10, 3))
    steps = model.config.denoise_steps
    cross, own = "head.denoiser.blocks.2.attention.", "head.denoiser.blocks.1.attention."
    assert (calls["backbone"], calls["head.state_encoder"], calls[cross + "k"], calls[cross + "v"]) == (1, 1, 1, 1)
    assert (calls[cross + "q"], calls[own + "k"], calls["head.action_decoder"]) == (steps, steps, steps)
    for module in model.modules():
        module._forward_hooks.clear()


def test_gradients_are_added_up_in_one_order(model: Groot) -> None:
    """`x[index]` adds its rows' gradients up as threads come to them: on a busy machine in another order."""
    called = set()

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func.overloadpacket.__name__)
            return func(*args, **kwargs or {})

    loss = velocity(model, pack(make_samples([1, 2, 1], [5, 9, 6], [5, 3, 4]))).square().sum()
    with Listener():
        loss.backward()
    model.zero_grad()
    assert "index_add" in called or "index_select_backward" in called
    assert not {name for name in called if "index_put" in name}
