"""The data of a run: its datasets, opened, and the stream of this process's share of every global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from vlarge.contracts import InputError
from vlarge.data.config import DataConfig, Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.service.client import ServiceProcess, stream_from
from vlarge.data.service.feed import Feed
from vlarge.data.service.plan import Node
from vlarge.data.service.stream import Limits, Stream, stream_here
from vlarge.recipe import Recipe
from vlarge.train.fit import Plan
from vlarge.train.parallel.mesh import World


def open_data(data: DataConfig) -> tuple[Dataset, ...]:
    """The datasets of a recipe's [data] table. Raises InputError, as `open_dataset` and `DataConfig.parts` do."""
    return tuple(
        open_dataset(
            part,
            data.index_dir,
            remote_cache_bytes=data.remote_cache_bytes,
            remote_deadline_s=data.remote_deadline_s,
        )
        for part in data.parts()
    )


def feed_of(recipe: Recipe, plan: Plan, world: World, start_step: int) -> Feed:
    """What this process's data service needs: one for the node, or one for the process alone."""
    data, size = recipe.data, plan.sizes.image_size
    if data.cache not in ("none", "resized"):
        raise InputError(f"data.cache is {data.cache!r}; use 'none' or 'resized'")
    ranks = world.local_size if data.workers else 1
    names = [item.name for item in fields(Source)]
    return Feed(
        sources=tuple(Source(**{name: getattr(part, name) for name in names}) for part in data.parts()),
        preparations=tuple(preparation.to_json() for preparation in plan.preparations),
        weights=tuple(part.weight for part in data.parts()),
        image_shape=(size, size),
        seed=recipe.run.seed,
        batch_size=recipe.train.batch_size,
        node=Node(world.rank // ranks, world.size // ranks, ranks),
        start_step=start_step,
        clip_frames=data.clip_frames,
        window_samples=data.window_samples,
        num_threads=1 if data.workers == 0 else max(0, data.workers),
        memory_bytes=data.memory_bytes,
        budget_tokens=recipe.train.micro_batch_tokens,
        image_tokens=plan.sizes.image_tokens,
        draw_tokens=plan.sizes.draw_tokens,
        suffixes_per_prefix=recipe.train.suffixes_per_prefix,
        padding=plan.preparations[0].padding,
        augment=data.augment,
        cache_dir=data.cache_dir if data.cache == "resized" else "",
        cache_bytes=data.cache_bytes,
        index_dir=data.index_dir,
        remote_cache_bytes=data.remote_cache_bytes,
        remote_deadline_s=data.remote_deadline_s,
    )


def open_stream(
    recipe: Recipe, datasets: Sequence[Dataset], feed: Feed, world: World, tell: Callable[[str], None]
) -> Stream:
    """This process's share of every global batch, as `feed` says. `tell` gets what goes wrong on the way.

    Bad samples are for the trainer to judge, which knows those of all processes.
    """
    limits = Limits(recipe.data.stall_s, max_bad_fraction=1.0)
    if recipe.data.workers == 0:
        return stream_here(feed, datasets, limits, tell)
    process = ServiceProcess(feed) if world.local_rank == 0 else None
    address = world.of_this_node(process.address if process else "")
    return stream_from(address, world.local_rank, feed.image_shape, process, limits, tell)
