"""Segments never see each other, and the batched backend equals the definition, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.models.attention import Segments, attend

SHAPES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None)
@given(shapes=SHAPES, heads=st.sampled_from([(2, 2), (4, 1), (4, 2)]), seed=st.integers(0, 99))
def test_batched_runs_equal_the_definition(shapes: list, heads: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    segments = Segments(tuple(q for q, _ in shapes), tuple(k for _, k in shapes))
    results = []
    q = torch.randn(segments.num_queries, heads[0], 8, requires_grad=True)
    k, v = (torch.randn(segments.num_keys, heads[1], 8, requires_grad=True) for _ in range(2))
    weight = torch.randn_like(q)
    for backend in ("sdpa", "dense"):
        out = attend(q, k, v, segments, backend)
        grads = torch.autograd.grad((out * weight).sum(), (q, k, v), allow_unused=True)
        results.append([out, *(g for g in grads if g is not None)])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)


def test_no_segment_at_all_gives_nothing() -> None:
    empty = torch.zeros(0, 2, 4)
    assert attend(empty, empty, empty, Segments((), ())).shape == (0, 2, 4)


@pytest.mark.parametrize("backend", ["sdpa", "dense"])
def test_causal_hides_later_keys(backend: str) -> None:
    q, k, v = (torch.randn(7, 2, 4) for _ in range(3))
    segments = Segments.self_attention((3, 4), causal=True)
    before = attend(q, k, v, segments, backend)
    k[2], v[2] = 9.0, 9.0  # the last key of the first segment
    after = attend(q, k, v, segments, backend)
    assert torch.equal(before[[0, 1, 3, 4, 5, 6]], after[[0, 1, 3, 4, 5, 6]])
    assert not torch.allclose(before[2], after[2])


def test_a_neighbour_changes_no_bit() -> None:
    q, k, v = (torch.randn(9, 2, 4) for _ in range(3))
    segments = Segments.self_attention((3, 3, 3))
    before = attend(q, k, v, segments)
    k[3:6], v[3:6], q[3:6] = 5.0, -2.0, 0.3
    after = attend(q, k, v, segments)
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(before[6:], after[6:])


def test_segments_that_do_not_cover_the_tokens_are_refused() -> None:
    x = torch.randn(4, 1, 4)
    with pytest.raises(ValueError, match="segments cover 3 queries"):
        attend(x, x, x, Segments.self_attention((3,)))
    with pytest.raises(ValueError, match="no attention backend 'flash'"):
        attend(x, x, x, Segments.self_attention((4,)), backend="flash")
