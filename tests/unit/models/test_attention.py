"""Segments never see each other, and every backend that runs here equals the definition, values and gradients."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlarge.models.attention import BACKENDS, FLEX_BLOCK, Segments, attend, bucket

# On a CPU FlexAttention runs uncompiled, of which it warns: it is there to be compared, not to be used.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")
SHAPES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=6)
HEADS = st.sampled_from([(2, 2), (4, 1), (4, 2)])
ON_CPU = ("sdpa", "dense", "flex")


def drawn(segments: Segments, heads: tuple[int, int] = (2, 2), seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    k, v = (torch.randn(segments.num_keys, heads[1], 16) for _ in range(2))
    return torch.randn(segments.num_queries, heads[0], 16), k, v


def values_and_gradients(segments: Segments, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    inputs = tuple(x.clone().requires_grad_() for x in inputs)
    out = attend(*inputs, segments)
    torch.manual_seed(0)
    (out * torch.randn_like(out) + 0 * sum(x.sum() for x in inputs)).sum().backward()
    return [out, *(x.grad for x in inputs)]


@settings(max_examples=40, deadline=None)
@given(shapes=SHAPES, heads=HEADS, causal=st.booleans(), seed=st.integers(0, 99))
def test_batched_runs_equal_the_definition(shapes: list, heads: tuple[int, int], causal: bool, seed: int) -> None:
    """Also for segments of no token, of one, and for queries without keys, which give zeros."""
    shapes = [(min(q, k), k) for q, k in shapes] if causal else shapes
    segments = Segments(tuple(q for q, _ in shapes), tuple(k for _, k in shapes), causal)
    inputs = drawn(segments, heads, seed)
    ours, reference = (values_and_gradients(replace(segments, backend=name), inputs) for name in ("sdpa", "dense"))
    for one, other in zip(ours, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    parts = ours[0].split(list(segments.q_lengths))
    for out, q_len, k_len in zip(parts, segments.q_lengths, segments.k_lengths, strict=True):
        assert not q_len or k_len or not out.any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(2, 2), (4, 1), (4, 2)])
def test_flex_equals_the_definition(heads: tuple[int, int], causal: bool) -> None:
    segments = Segments((3, 0, 140, 1), (5, 0, 140, 9), causal)
    inputs = drawn(segments, heads)
    reference = attend(*inputs, replace(segments, backend="dense"))
    torch.testing.assert_close(attend(*inputs, replace(segments, backend="flex")), reference, rtol=1e-5, atol=1e-5)


def test_few_shapes_are_compiled_for_many_packings() -> None:
    assert {bucket(n) for n in range(1, FLEX_BLOCK + 1)} == {FLEX_BLOCK}
    shapes = {bucket(n) for n in range(4096, 8192)}
    assert len(shapes) <= 9
    assert all(n <= bucket(n) < n * 1.13 + FLEX_BLOCK for n in range(1, 20_000, 7))


@pytest.mark.parametrize("backend", ON_CPU)
def test_no_segment_at_all_gives_nothing(backend: str) -> None:
    empty = torch.zeros(0, 2, 16)
    assert attend(empty, empty, empty, Segments((), (), backend=backend)).shape == (0, 2, 16)


@pytest.mark.parametrize("backend", ON_CPU)
def test_causal_hides_later_keys(backend: str) -> None:
    """The last queries are the last keys' tokens, also where there are more keys than queries."""
    segments = Segments((3, 4, 2), (3, 4, 6), causal=True, backend=backend)
    q, k, v = drawn(segments)
    before = attend(q, k, v, segments)
    for key, sees_it in ((2, [2]), (11, [7, 8]), (12, [8])):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[key], changed_v[key] = 9.0, 9.0
        after = attend(q, changed_k, changed_v, segments)
        assert [i for i in range(9) if not torch.equal(before[i], after[i])] == sees_it


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_neighbour_changes_no_bit(backend: str) -> None:
    segments = Segments.self_attention((3, 3, 3), backend=backend)
    q, k, v = drawn(segments)
    before = attend(q, k, v, segments)
    k[3:6], v[3:6], q[3:6] = 5.0, -2.0, 0.3
    after = attend(q, k, v, segments)
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(before[6:], after[6:])


def test_segments_that_do_not_fit_are_refused() -> None:
    x = torch.randn(4, 1, 16)
    with pytest.raises(ValueError, match="segments cover 3 queries"):
        attend(x, x, x, Segments.self_attention((3,)))
    with pytest.raises(ValueError, match="2 query segments but 1 key segments"):
        Segments((1, 1), (2,))
    with pytest.raises(ValueError, match="at least as many keys as queries"):
        Segments((3,), (2,), causal=True)


def test_a_backend_that_cannot_do_it_says_why() -> None:
    x = torch.randn(4, 1, 16, requires_grad=True)
    for backend, reason in (
        ("flash", "'flash' needs a CUDA device, not cpu"),
        ("flex", "'flex' computes no gradients on a CPU"),
        ("flash_attention_2", "no attention backend 'flash_attention_2'; there are auto, dense, flash, flex, sdpa"),
    ):
        with pytest.raises(ValueError, match=reason):
            attend(x, x, x, Segments.self_attention((4,), backend=backend))


@pytest.mark.parametrize(
    ("dtype", "dim", "reason"),
    [
        (torch.float32, 64, "needs bfloat16 or float16, not torch.float32"),
        (torch.bfloat16, 12, "multiple of 8, not 12"),
        (torch.bfloat16, 264, "at most 256"),
        (torch.bfloat16, 72, ""),
    ],
)
def test_flash_knows_its_limits(dtype: torch.dtype, dim: int, reason: str) -> None:
    class OnGpu:  # its shape only: there may be no such device here
        device = torch.device("cuda")

    query = OnGpu()
    query.dtype, query.shape = dtype, (4, 1, dim)
    said = BACKENDS["flash"].refuses(query)
    assert reason in said
    assert bool(reason) == bool(said)
