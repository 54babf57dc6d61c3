"""Recomputed layers and compiled regions change how a network is run, not what it computes; nothing becomes NaN."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models.compute import compile_regions, recompute_layers
from vlarge.models.config import ModelConfig
from vlarge.models.flow import PI0_FLOW
from vlarge.models.registry import find_family
from vlarge.train.step import DTYPES, draw, precision

FAMILIES = ("pi05", "pi0", "smolvla", "gr00t")
CPU = torch.device("cpu")


def model_of(name: str) -> Any:
    family = find_family(name)
    sizes = family.resolve(ModelConfig(name=name), vocab_size=4373, state_dim=4, action_dim=3)
    sizes = replace(sizes, depth=2, vision_depth=1, image_size=sizes.patch * 4)
    torch.manual_seed(0)
    model = family.build(sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.train()


def batch_of(model: Any, num_samples: int, seed: int = 0) -> PackedBatch:
    rng = np.random.default_rng(seed)
    size = model.config.image_size

    def sample(i: int) -> Sample:
        images = {
            str(k): rng.integers(0, 256, (size, size, 3)).astype(np.uint8) for k in range(int(rng.integers(0, 3)))
        }
        ids, steps = rng.integers(0, 240, int(rng.integers(1, 9))), int(rng.integers(1, 6))
        numbers = rng.standard_normal(4), rng.standard_normal((steps, 3))
        return Sample(SampleId(0, i, 0), images, ids, *(n.astype(np.float32) for n in numbers))

    return pack([sample(i) for i in range(num_samples)])


def loss_and_gradients(model: Any, batch: PackedBatch, dtype: str = "fp32") -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    with precision(DTYPES[dtype], CPU):
        draws = draw(batch, model.flow, seed=0, step=0, num_draws=2, action_dim=model.config.max_action_dim)
        loss = draws.errors_of(model, batch, 2).sum() / (2 * batch.num_valid_values)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("amount", ["layers", "selective"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_layers_give_the_same_bits(family: str, amount: str) -> None:
    plain, recomputed = model_of(family), model_of(family)
    recompute_layers(recomputed, amount)
    assert recomputed.state_dict().keys() == plain.state_dict().keys()
    batch = batch_of(plain, 5)
    (loss, gradients), (other, others) = (loss_and_gradients(model, batch) for model in (plain, recomputed))
    assert loss == other
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))


def test_recomputed_layers_keep_less() -> None:
    def kept(model: Any) -> int:
        seen: set[int] = set()
        total = 0

        def note(x: torch.Tensor) -> torch.Tensor:
            nonlocal total
            if x.data_ptr() not in seen:
                seen.add(x.data_ptr())
                total += x.numel()
            return x

        batch = batch_of(model, 6)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            model(batch, torch.zeros(int(batch.num_actions_B.sum()), 3), torch.full((6,), 0.5)).sum()
        return total

    plain, recomputed = model_of("pi05"), model_of("pi05")
    recompute_layers(recomputed)
    assert kept(recomputed) < 0.5 * kept(plain)


def test_selective_recomputing_repeats_no_matrix_product() -> None:
    def products(amount: str) -> int:
        model = model_of("pi05")
        recompute_layers(model, amount)
        with FlopCounterMode(display=False) as counter:
            loss_and_gradients(model, batch_of(model, 5))
        return counter.get_total_flops()

    assert products("selective") == products("none") < products("layers")


def test_few_graphs_are_compiled_for_many_packings() -> None:
    """A hundred different packings: lengths are no reason to compile again."""
    torch._dynamo.reset()
    graphs: list[Any] = []

    def count(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plain, compiled = model_of("pi05"), model_of("pi05")
    compile_regions(compiled, backend=count)  # type: ignore[arg-type]
    with torch.no_grad():
        for seed in range(100):
            batch = batch_of(plain, 1 + seed % 7, seed)
            inputs = torch.randn(int(batch.num_actions_B.sum()), 3), torch.full((batch.num_samples,), 0.5)
            found = compiled(batch, *inputs)
    assert 2 <= len(graphs) <= 16  # kinds of regions and widths; no row, one row and more are told apart
    torch.testing.assert_close(found, plain(batch, *inputs))
    torch._dynamo.reset()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_becomes_nan(family: str, recompute: bool) -> None:
    """lerobot#2465: losses that were NaN for some batch sizes, in bf16, with recomputation."""
    check_finite(family, "bf16", recompute=recompute, compiled=False)


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated", "ignore:The .grad attribute"
)  # of torch's compiler
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_becomes_nan_compiled(family: str, dtype: str, recompute: bool) -> None:
    check_finite(family, dtype, recompute=recompute, compiled=True)


def check_finite(family: str, dtype: str, *, recompute: bool, compiled: bool) -> None:
    reference, model = model_of(family), model_of(family)
    if compiled:
        compile_regions(model)
    if recompute:
        recompute_layers(model)
    for num_samples in (1, 2, 7, 32):
        batch = batch_of(model, num_samples, seed=num_samples)
        loss, gradients = loss_and_gradients(model, batch, dtype)
        exact, exact_gradients = loss_and_gradients(reference, batch)
        assert math.isfinite(loss)
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert loss == pytest.approx(exact, rel=1e-2 if dtype == "bf16" else 1e-5)
        norm, exact_norm = (sum(g.square().sum() for g in each) ** 0.5 for each in (gradients, exact_gradients))
        assert float(norm) == pytest.approx(float(exact_norm), rel=5e-2 if dtype == "bf16" else 1e-4)


def test_an_empty_batch_is_no_nan() -> None:
    model = model_of("pi05")
    velocity = model(pack([]), torch.zeros(0, 3), torch.zeros(0))
    assert velocity.shape == (0, 3)
    assert PI0_FLOW.noise_at == model.flow.noise_at
