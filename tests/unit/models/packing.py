"""What packing has to keep (law M1) and must not waste (law M2), whatever the model family.

A model under test takes images of 32 pixels, two state and three action dimensions, and token ids up to 255.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models.flow import keyed_draws

ACTION_DIM = 3


def make_samples(
    num_images: list[int], num_text: list[int], num_actions: list[int], seed: int = 0, image_size: int = 32
) -> list[Sample]:
    """Samples of these sizes, with content at random."""
    rng = np.random.default_rng(seed)
    shape = image_size, image_size, 3
    return [
        Sample(
            id=SampleId(0, i, 0),
            images={f"camera{n}": rng.integers(0, 256, shape).astype(np.uint8) for n in range(images)},
            prompt_ids=rng.integers(0, 256, text),
            state_A=rng.standard_normal(2).astype(np.float32),
            actions_SA=rng.standard_normal((actions, ACTION_DIM)).astype(np.float32),
        )
        for i, (images, text, actions) in enumerate(zip(num_images, num_text, num_actions, strict=True))
    ]


def draws(model: Any, batch: PackedBatch, num_draws: int = 1) -> tuple[Tensor, Tensor]:
    """Noise and times."""
    times, noise = keyed_draws(0, batch.sample_ids_B3, 7, batch.num_actions_B, ACTION_DIM, num_draws, model.flow)
    return torch.from_numpy(noise), torch.from_numpy(times)


def velocity(model: Any, batch: PackedBatch, num_draws: int = 1) -> Tensor:
    return model(batch, *draws(model, batch, num_draws), num_draws)


def check_alone(model: Any, samples: list[Sample]) -> None:
    """A sample beside others equals the sample alone."""
    batch = pack(samples)
    together = velocity(model, batch).split(batch.num_actions_B.tolist())
    by_id = {int(sample_id[1]): part for sample_id, part in zip(batch.sample_ids_B3, together, strict=True)}
    for sample in samples:
        alone = velocity(model, pack([sample]))
        assert len(alone) == len(sample.actions_SA)  # valid steps only
        torch.testing.assert_close(by_id[sample.id.episode], alone, rtol=1e-5, atol=1e-5)


def check_gradients_add_up(model: Any, samples: list[Sample]) -> None:
    """Gradients of a batch are the sum of those of its samples."""
    # That of a key's bias is zero but for rounding.
    parameters = [p for name, p in model.named_parameters() if not name.endswith(".k.bias")]

    def gradients(batch: PackedBatch) -> list[Tensor]:
        found = torch.autograd.grad(velocity(model, batch).square().sum(), parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]

    together, alone = gradients(pack(samples)), [gradients(pack([sample])) for sample in samples]
    for whole, *parts in zip(together, *alone, strict=True):
        assert whole.any()
        assert (whole - sum(parts)).abs().max() <= 1e-5 * whole.abs().max() + 1e-7


def check_neighbours_do_not_matter(model: Any) -> None:
    """Another neighbour of the same size changes no bit."""
    sizes = [1, 1, 1], [6, 6, 6], [4, 4, 4]
    samples, other = make_samples(*sizes), make_samples(*sizes, seed=1)[1]
    before = velocity(model, pack(samples)).split(4)
    after = velocity(model, pack([samples[0], other, samples[2]])).split(4)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.allclose(before[1], after[1])


def check_draws(model: Any, batch: PackedBatch, num_draws: int = 3) -> None:
    """Each draw of a sample equals a run of its own with that noise and time."""
    noise, times = draws(model, batch, num_draws)
    lengths = np.repeat(batch.num_actions_B, num_draws).tolist()
    parts, noises = model(batch, noise, times, num_draws).split(lengths), noise.split(lengths)
    for draw in range(num_draws):
        rows = list(range(draw, len(lengths), num_draws))
        alone = model(batch, torch.cat([noises[r] for r in rows]), times[rows])
        torch.testing.assert_close(torch.cat([parts[r] for r in rows]), alone, rtol=1e-5, atol=1e-5)


def dead_parameters(model: Any, batch: PackedBatch) -> list[str]:
    """Names of parameters that the velocities do not depend on."""
    model.zero_grad()
    velocity(model, batch).square().sum().backward()
    return [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]


def check_flops(model: Any, counted: Callable[..., float], batch: PackedBatch, num_draws: int = 2) -> None:
    """The family's count is the profiler's."""
    # The counter does not know the fused CPU attention; it counts the plain one's products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        velocity(model, batch, num_draws)
    ours, theirs = counted(model.config, batch, num_draws), counter.get_total_flops()
    assert abs(ours - theirs) <= 1e-6 * theirs, f"{ours:.0f} counted, {theirs} made"


def check_order_of_sums(model: Any, batch: PackedBatch) -> None:
    """`x[index]` adds its rows' gradients up as threads come to them: on a busy machine in another order."""
    called = set()

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func.overloadpacket.__name__)
            return func(*args, **kwargs or {})

    loss = velocity(model, batch).square().sum()
    with Listener():
        loss.backward()
    assert "index_add" in called or "index_select_backward" in called
    assert not {name for name in called if "index_put" in name}
