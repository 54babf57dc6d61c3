"""The dry run of a recipe on so many processes: what is refused, and the ranks that stand for all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed import is_torchelastic_launched

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.models.division import Division
from vlarge.models.registry import find_family
from vlarge.recipe import Recipe
from vlarge.train.config import TORCH, ParallelConfig, TrainConfig
from vlarge.train.dry_run.case import Case, case_of, packed, shared_out
from vlarge.train.dry_run.rehearsal import CPU, Bytes, Global, rehearse
from vlarge.train.dry_run.traffic import Row
from vlarge.train.parallel.mesh import data_rank
from vlarge.train.step import compute_dtype

Tell = Callable[[str, int], None]  # a line, and how many ranks further


@dataclass(frozen=True)
class RankForecast:
    """Of one process. stages: numbers of its pipeline stages. num_samples, num_micro: of an optimizer step."""

    rank: int
    stages: tuple[int, ...]
    num_samples: int
    num_micro: int
    held: Bytes
    traffic: tuple[Row, ...]


@dataclass(frozen=True)
class Forecast:
    """parallel: every degree stated. num_parameters, num_trained: of the whole model. assumed: what the figures take
    for granted. ranks: the first process of each part of the pipeline, which has the largest part of all that does not
    divide evenly.
    """

    recipe: Recipe
    parallel: ParallelConfig
    num_parameters: int
    num_trained: int
    assumed: tuple[str, ...]
    ranks: tuple[RankForecast, ...]

    @property
    def worst(self) -> RankForecast:
        """The one that needs most memory."""
        return max(self.ranks, key=lambda each: each.held.total)


def forecast(recipe: Recipe, world_size: int, tell: Tell = lambda _line, _more: None) -> Forecast:
    """What `world_size` processes would hold and say. tell: hears of each rank that is done.

    Raises InputError for what a start of so many would refuse, before anything is built.
    """
    if is_torchelastic_launched():
        raise InputError("a dry run is one process, whatever --world-size says: start it without torchrun")
    if recipe.parallel.engine != TORCH:
        raise InputError(
            f"a dry run follows torch's engine, and parallel.engine is {recipe.parallel.engine!r}: leave it out;"
            " parallel.dp_shard divides the same as its stage 3"
        )
    degrees = recipe.parallel.resolve(world_size)
    degrees.check_batch(recipe.train.batch_size)
    case = case_of(recipe)
    division = find_family(case.model.name).division(case.sizes)
    division.check(num_stages=degrees.num_stages, ep=degrees.ep, cp=degrees.cp, tp=degrees.tp)
    said, recipe = _said(recipe, case), _on_gpus(recipe)
    ranks = _ranks(case, division, degrees, recipe.train, tell)
    num_trained, num_frozen = (sum(parts.values()) for parts in (case.audit.trainable, case.audit.frozen))
    return Forecast(
        recipe=recipe,
        parallel=degrees,
        num_parameters=num_trained + num_frozen,
        num_trained=num_trained,
        assumed=said,
        ranks=ranks,
    )


def _on_gpus(recipe: Recipe) -> Recipe:
    # "auto" is what the GPUs of such a run are fast at, not this machine; compilation saves time and memory there.
    dtype = "bf16" if recipe.train.dtype == "auto" else compute_dtype(recipe.train.dtype, CPU)
    return recipes.replace(recipes.replace(recipe, "train.dtype", dtype), "train.compile", False)


def _ranks(
    case: Case, division: Division, degrees: ParallelConfig, c: TrainConfig, tell: Tell
) -> tuple[RankForecast, ...]:
    shares = shared_out(case, c, degrees)
    samples = case.batch(c.batch_size)
    whole = Global(sum(s.actions_SA.size for s in samples), sum(len(s.actions_SA) for s in samples))
    ranks: list[RankForecast] = []
    for first in range(0, degrees.num_processes, degrees.num_processes // degrees.pp):
        batches = packed(shares[data_rank(degrees, first)])
        stages = tuple(range(len(ranks), degrees.num_stages, degrees.pp))
        found = rehearse(case.network(), division, degrees, c, first, batches, whole)
        num_samples = sum(batch.num_samples for batch in batches)
        ranks.append(RankForecast(first, stages, num_samples, len(batches), found.held, found.traffic))
        tell(f"{len(ranks)} of {degrees.pp}: rank {first} followed through a step", 1)
    return tuple(ranks)


def _said(recipe: Recipe, case: Case) -> tuple[str, ...]:
    # What the figures take for granted.
    said = [*case.assumed]
    if recipe.train.compile:
        said.append("train.compile is left out: it fuses, so that activations are fewer")
    if recipe.train.micro_batch_tokens == "auto":
        said.append("a process does its share at once: train.micro_batch_tokens is found on the GPUs themselves")
    if getattr(case.sizes, "num_experts", 0):
        said.append("every expert has as many tokens as the others")
    return tuple(said)
