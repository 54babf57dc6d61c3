"""A dry run: what a process would hold, by arithmetic; what is refused; and what is printed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from vlarge import recipe as recipes
from vlarge.cli import main as cli
from vlarge.contracts import InputError
from vlarge.models.registry import find_family
from vlarge.recipe import Recipe
from vlarge.train.dry_run.forecast import Forecast, forecast
from vlarge.train.dry_run.report import tables

FP32 = 4


@cache
def dry(world_size: int, **settings: object) -> Forecast:
    return forecast(changed(**settings), world_size)


def changed(**settings: object) -> Recipe:
    recipe = recipes.load([], {"model.preset": "tiny", "train.dtype": "fp32", "train.batch_size": 64})
    for key, value in settings.items():
        recipe = recipes.replace(recipe, key.replace("__", "."), value)
    return recipe


def shapes(recipe: Recipe) -> list[torch.Size]:
    family = find_family(recipe.model.name)
    with torch.device("meta"):
        network = family.build(family.resolve(recipe.model, vocab_size=1, state_dim=7, action_dim=7))
    return [tensor.shape for tensor in (*network.parameters(), *network.buffers())]


def shard_bytes(recipe: Recipe, num_shards: int) -> int:
    """Of the first process: rows divided evenly, the rest of them from the first on."""
    return sum(FP32 * math.ceil(s[0] / num_shards) * math.prod(s[1:]) for s in shapes(recipe))


def test_a_part_of_the_weights_is_what_arithmetic_says() -> None:
    (rank,) = dry(8, parallel__dp_shard=8).ranks
    assert rank.held.parameters == shard_bytes(changed(), 8)
    assert rank.held.optimizer > 2 * rank.held.gradients  # two moments, and how many steps they are of
    assert rank.held.gradients == pytest.approx(rank.held.parameters, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["pi05_base", "gr00t_n15_3b"])
def test_a_thousand_processes_hold_what_arithmetic_says(recipe: str) -> None:
    loaded = recipes.load([f"recipes/{recipe}.toml"], {"parallel.dp_shard": 1024, "parallel.dp_replicate": 1})
    (rank,) = forecast(loaded, 1024).ranks
    assert rank.held.parameters == shard_bytes(loaded, 1024)


def test_stages_have_the_whole_between_them() -> None:
    found = dry(2, parallel__pp=2)
    assert sum(rank.held.parameters for rank in found.ranks) == FP32 * sum(map(math.prod, shapes(changed())))
    assert [rank.stages for rank in found.ranks] == [(0,), (1,)]


def test_what_is_run_again_is_not_held() -> None:
    kept, again = (dry(1, train__recompute=amount).worst.held.activations for amount in ("none", "layers"))
    assert 0 < again < kept


def test_smaller_micro_batches_hold_less() -> None:
    whole, cut = (dry(1, train__micro_batch_tokens=tokens).worst for tokens in (0, 2000))
    assert cut.num_micro > whole.num_micro == 1
    assert cut.held.activations < whole.held.activations


def test_what_a_start_would_refuse_is_refused() -> None:
    with pytest.raises(InputError, match="cannot share"):
        dry(128)
    with pytest.raises(InputError, match="tp"):
        dry(3, parallel__tp=3)
    with pytest.raises(InputError, match="a dry run follows torch's engine"):
        dry(2, parallel__engine="deepspeed", parallel__zero_stage=3)


def test_tables_fit_a_terminal_of_80_columns() -> None:
    for table in tables(dry(2, parallel__pp=2)):
        widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
        assert sum(width + 3 for width in widths) <= 80


def test_of_many_stages_each_has_its_total_and_the_worst_its_tables() -> None:
    few = dry(2, parallel__pp=2)
    assert len(tables(few)) == 2
    many = replace(few, ranks=few.ranks * 3)
    total, memory, traffic = tables(many)
    assert [row[0] for row in total.rows] == ["rank 0", "rank 1"] * 3
    assert {row[0] for row in total.rows if row[-1]} == {f"rank {many.worst.rank}"}
    assert memory.columns[1:] == traffic.columns[2:3] == [f"rank {many.worst.rank}"]


def test_it_is_printed_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model.preset", "tiny", "--parallel.dp_shard", "4", "--dry-run", "--world-size", "4", "--json"]
    assert cli.main(["train", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["world_size"] == 4
    assert found["ranks"][0]["bytes"]["total"] > 0
    assert {each["kind"] for each in found["ranks"][0]["collectives"]} >= {"all-gather", "reduce-scatter"}
