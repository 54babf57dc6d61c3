"""The data of a run: its datasets, opened, and the stream of this process's share of every global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain

from vlarge.contracts import InputError, PackedBatch, SampleId
from vlarge.data.config import DataConfig, Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.service.client import ServiceProcess, stream_from
from vlarge.data.service.feed import Feed
from vlarge.data.service.plan import Node
from vlarge.data.service.stream import Limits, Stream, stream_here
from vlarge.recipe import Recipe
from vlarge.train.config import ParallelConfig
from vlarge.train.fit import Plan
from vlarge.train.health.pulse import COMMUNICATE, DATA
from vlarge.train.parallel.deliver import deliver
from vlarge.train.parallel.mesh import Mesh, data_rank, is_lead, lead_ranks, machines


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


class Share:
    """Iterates over this process's share of every global batch: a list of micro-batches. Close it when done.

    One process of those that work on a share reads it and hands it on. tell: gets what goes wrong on the way.
    `stream` is None where another process reads.
    """

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan,
        datasets: Sequence[Dataset],
        mesh: Mesh,
        start_step: int,
        tell: Callable[[str], None],
    ) -> None:
        self._mesh, self._pulse = mesh, mesh.world.pulse
        seat = seat_of(mesh, together=recipe.data.workers != 0)
        self.stream = _open_stream(recipe, plan, datasets, mesh, seat, start_step, tell)

    def __next__(self) -> list[PackedBatch]:
        batches = None
        if self.stream is not None:
            with self._pulse.section(DATA, self.stream.late):
                batches = next(self.stream)
        if self._mesh.sharers is not None:
            with self._pulse.section(COMMUNICATE):
                return deliver(batches, self._mesh.sharers)
        assert batches is not None
        return batches

    @property
    def last_reason(self) -> str:
        """Why the last sample was replaced that could not be read."""
        return self.stream.last_reason if self.stream else ""

    def replaced(self) -> tuple[int, list[tuple[SampleId, SampleId]]]:
        """How often a sample was replaced here, and each that was, with the last one in its place."""
        return (self.stream.num_replaced, [*self.stream.replaced.items()]) if self.stream else (0, [])

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


@dataclass(frozen=True)
class Seat:
    """Where a process reads: node as its data service counts; number among the readers there, None for no reader.

    starter: the rank that starts that service.
    """

    node: Node
    number: int | None
    starter: int


def seat_of(mesh: Mesh, *, together: bool) -> Seat:
    """together: all readers of a machine share one service, where machines have equally many in a row."""
    degrees, world = mesh.degrees, mesh.world
    ranks = [[r for r in node if is_lead(degrees, r)] for node in machines(world.size, world.local_size)]
    ranks = [readers for readers in ranks if readers] if together else []
    shares = [[data_rank(degrees, r) for r in readers] for readers in ranks]
    even = len({len(own) for own in shares}) == 1 and [*chain(*shares)] == [*range(degrees.num_data)]
    if not even:  # each reads alone
        shares = [[share] for share in range(degrees.num_data)]
        ranks = [[r] for r in sorted(lead_ranks(degrees), key=lambda r: data_rank(degrees, r))]
    here = next(k for k, own in enumerate(shares) if mesh.data_rank in own)
    number = shares[here].index(mesh.data_rank) if mesh.is_lead else None
    return Seat(Node(here, len(shares), len(shares[here])), number, ranks[here][0])


def feed_of(recipe: Recipe, plan: Plan, node: Node, degrees: ParallelConfig, start_step: int) -> Feed:
    """What a data service needs: one for a machine, or one for a process alone."""
    data, size = recipe.data, plan.sizes.image_size
    if data.cache not in ("none", "resized"):
        raise InputError(f"data.cache is {data.cache!r}; use 'none' or 'resized'")
    names = [item.name for item in fields(Source)]
    return Feed(
        sources=tuple(Source(**{name: getattr(part, name) for name in names}) for part in data.parts()),
        preparations=tuple(preparation.to_json() for preparation in plan.preparations),
        weights=tuple(part.weight for part in data.parts()),
        image_shape=(size, size),
        seed=recipe.run.seed,
        batch_size=recipe.train.batch_size,
        node=node,
        start_step=start_step,
        clip_frames=data.clip_frames,
        window_samples=data.window_samples,
        num_threads=1 if data.workers == 0 else max(0, data.workers),
        memory_bytes=data.memory_bytes,
        budget_tokens=recipe.train.budget_tokens,
        micro_batches=degrees.num_micro,
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


def _open_stream(
    recipe: Recipe,
    plan: Plan,
    datasets: Sequence[Dataset],
    mesh: Mesh,
    seat: Seat,
    start_step: int,
    tell: Callable[[str], None],
) -> Stream | None:
    # Bad samples are for the trainer to judge, which knows those of all processes.
    limits = Limits(recipe.data.stall_s, max_bad_fraction=1.0)
    feed = feed_of(recipe, plan, seat.node, mesh.degrees, start_step)
    if recipe.data.workers == 0:
        return stream_here(feed, datasets, limits, tell) if seat.number is not None else None
    process = ServiceProcess(feed) if mesh.world.rank == seat.starter else None
    address = mesh.world.texts(process.address if process else "")[seat.starter]
    if seat.number is None:
        return None
    return stream_from(address, seat.number, feed.image_shape, process, limits, tell)
