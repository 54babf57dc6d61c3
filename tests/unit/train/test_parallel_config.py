"""Degrees are stated or refused before anything is built, by the rule that they break."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.models import gr00t, pi0, smolvla
from vlarge.models.gr00t.config import PRESETS as GROOT
from vlarge.models.pi0.config import PRESETS as PI0
from vlarge.models.smolvla.config import PRESETS as SMOLVLA
from vlarge.train.config import AXES, ParallelConfig
from vlarge.train.parallel.mesh import coordinates, data_rank, is_lead, lead_ranks

degree = st.sampled_from([1, 2, 3])


def test_what_is_left_goes_to_copies_or_to_shards() -> None:
    assert ParallelConfig().resolve(8).dp_replicate == 8
    assert ParallelConfig(tp=2).resolve(8).dp_replicate == 4
    assert ParallelConfig(dp_shard=0, tp=2).resolve(8) == ParallelConfig(dp_replicate=1, dp_shard=4, tp=2)
    assert ParallelConfig(dp_replicate=2, dp_shard=0).resolve(8).dp_shard == 4
    assert ParallelConfig().resolve(1).num_processes == 1


@pytest.mark.parametrize(
    ("config", "num", "text"),
    [
        (
            ParallelConfig(tp=3),
            8,
            r"tp 3 makes 3 processes, and there are 8: change a degree, or start a multiple of 3",
        ),
        (
            ParallelConfig(dp_replicate=2, tp=2),
            8,
            r"makes 4 processes, and there are 8: change a degree, or start 4 \(torchrun",
        ),
        (ParallelConfig(tp=4), 2, "makes 4 processes, and there are 2"),
        (ParallelConfig(schedule="gpipe"), 1, "parallel.schedule is 'gpipe'; use '1f1b' or 'interleaved'"),
        (ParallelConfig(stages_per_process=2), 1, "above 1 goes with 'interleaved'"),
        (ParallelConfig(schedule="interleaved"), 1, "above 1 goes with 'interleaved'"),
        (ParallelConfig(micro_batches=4), 1, "a pipeline's: set parallel.pp"),
        (ParallelConfig(pp=2, micro_batches=3), 2, "make it a multiple of the 2 stages"),
    ],
)
def test_what_does_not_multiply_is_refused(config: ParallelConfig, num: int, text: str) -> None:
    with pytest.raises(InputError, match=text):
        config.resolve(num)


@settings(deadline=None, max_examples=30)
@given(st.tuples(*[degree] * len(AXES)))
def test_every_rank_has_its_own_place(degrees: tuple[int, ...]) -> None:
    config = ParallelConfig(**dict(zip(AXES, degrees, strict=True)))
    ranks = range(config.num_processes)
    places = [tuple(coordinates(config, rank).values()) for rank in ranks]
    assert len(set(places)) == len(places)
    assert sorted({data_rank(config, rank) for rank in ranks}) == [*range(config.num_data)]
    assert sorted(data_rank(config, rank) for rank in lead_ranks(config)) == [*range(config.num_data)]
    lowest = {data_rank(config, rank): rank for rank in reversed(ranks)}
    assert all(is_lead(config, rank) == (lowest[data_rank(config, rank)] == rank) for rank in ranks)


def refused(division, text: str, **degrees: int) -> None:
    with pytest.raises(InputError, match=text):
        division.check(**({"num_stages": 1, "ep": 1, "cp": 1, "tp": 1} | degrees))


def test_full_size_models_say_which_rule_is_broken() -> None:
    base, groot = pi0.division(PI0["base"]), gr00t.division(GROOT["n1.5-3b"])
    for tp, cp in ((1, 1), (8, 1), (1, 8), (2, 4)):
        base.check(num_stages=18, ep=1, cp=cp, tp=tp)
    groot.check(num_stages=8, ep=32, cp=1, tp=8)
    refused(base, "19 stages, the model has 18 layers to cut", num_stages=19)
    refused(base, r"tp 1 x cp 16: their product must divide the 8 heads of prefix_layers", cp=16)
    refused(base, "parallel.tp is 3: it must divide the 4304 hidden columns of vision.blocks", tp=3)
    refused(base, "parallel.ep is 2, and the model has no experts", ep=2)
    refused(groot, "parallel.ep is 5, and the model has 32 experts in each, which it must divide", ep=5)
    refused(groot, r"must divide the 8 key heads of backbone.layers", tp=16)
    refused(smolvla.division(SMOLVLA["base"]), "SmolVLA's expert mixes the heads", tp=2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=4, max_size=9), st.integers(1, 4))
def test_the_stage_with_the_most_work_has_as_little_as_can_be(costs: list[int], num_stages: int) -> None:
    """costs: of entering, then of each layer; the first stage enters too."""
    layers = costs[1:]
    num_stages = min(num_stages, len(layers))
    plain = replace(pi0.division(PI0["base"]), num_layers=len(layers))
    cuts = replace(plain, costs=tuple(map(float, costs))).cut(num_stages)
    assert [i for cut in cuts for i in cut] == [*range(len(layers))]
    assert len(cuts) == num_stages
    assert all(cuts)

    def most(ends: tuple[int, ...]) -> int:
        bounds = [0, *ends, len(layers)]
        work = [sum(layers[a:b]) for a, b in pairwise(bounds)]
        return max(costs[0] + work[0], *work)

    best = min(most(ends) for ends in combinations(range(1, len(layers)), num_stages - 1))
    assert most(tuple(cut.stop for cut in cuts[:-1])) == best


def test_without_costs_all_layers_count_alike() -> None:
    assert [len(cut) for cut in pi0.division(PI0["base"]).cut(6)] == [3] * 6
