"""A forecast in words and tables, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from vlarge.train.config import AXES
from vlarge.train.dry_run.forecast import Forecast, RankForecast
from vlarge.train.dry_run.rehearsal import Bytes
from vlarge.train.dry_run.traffic import place

HELD = {
    "parameters": "weights", "gradients": "gradients", "optimizer": "optimizer", "ema": "EMA",
    "activations": "activations", "in_flight": "in flight", "total": "total",
}  # fmt: skip
MOST = "◀"
MOST_RANKS = 4  # that stand side by side
RECOMPUTED = {"none": "", "selective": ", cheap parts run again", "layers": ", layers run again"}
LEGEND = """\
in flight: weights gathered by FSDP, and their gradients before they are scattered. Not counted: the driver's and NCCL's
own memory, and gaps of the allocator. Of collectives the gathered, reduced or exchanged whole is counted."""


class Table(NamedTuple):
    """title, columns, rows of cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def headline(f: Forecast) -> list[str]:
    """What was asked, and what was assumed."""
    c = f.recipe
    mesh = " x ".join(f"{axis} {getattr(f.parallel, axis)}" for axis in AXES if getattr(f.parallel, axis) > 1)
    model = f"{c.model.name} {c.model.init or c.model.preset}"
    lines = [
        f"{model}: {_count(f.num_parameters)} parameters, {_count(f.num_trained)} trained,"
        f" {c.train.dtype}{RECOMPUTED[c.train.recompute]}",
        f"{f.parallel.num_processes} processes: {mesh or 'alone'}; {c.train.batch_size} samples a step,"
        f" {f.worst.num_samples} on a process, micro-batches: {f.worst.num_micro}",
    ]
    return lines + [f"assumed: {each}" for each in f.assumed]


def tables(f: Forecast) -> list[Table]:
    """What a terminal of 80 columns has room for: few ranks stand side by side; of many, each one's total and whole
    tables of the worst.
    """
    if len(f.ranks) <= MOST_RANKS:
        return [memory_table(f.ranks), traffic_table(f.ranks)]
    return [total_table(f), memory_table([f.worst]), traffic_table([f.worst])]


def memory_table(ranks: Sequence[RankForecast]) -> Table:
    """A row for each kind of memory, a column for each rank."""
    rows = [["stage", *map(_stages, ranks)]]
    rows += [[text, *(size(getattr(each.held, name)) for each in ranks)] for name, text in HELD.items()]
    return Table("memory of a process, at most", ["", *map(_name, ranks)], rows)


def total_table(f: Forecast) -> Table:
    """A row for each rank; the one that needs most is marked."""
    rows = [[_name(each), _stages(each), size(each.held.total), MOST if each is f.worst else ""] for each in f.ranks]
    return Table("memory of each part of the pipeline", ["process", "stage", "total", ""], rows)


def traffic_table(ranks: Sequence[RankForecast]) -> Table:
    """A row for each kind of collective along the same axes, a pair of columns for each rank: how many, bytes."""
    kinds = sorted({row[:2] for each in ranks for row in each.traffic}, key=place)
    found = [{row[:2]: row for row in each.traffic} for each in ranks]
    rows = []
    for axes, kind in kinds:
        own = [each.get((axes, kind)) for each in found]
        cells = [[f"{row.num_calls}", size(row.num_bytes)] if row else ["", ""] for row in own]
        rows.append([" x ".join(axes) or "all", kind, *(cell for pair in cells for cell in pair)])
    names = [name for each in ranks for name in (_name(each), "")]
    return Table("collectives of a step", ["along", "kind", *names], rows)


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"


def as_json(f: Forecast) -> dict[str, Any]:
    """Stable; more keys may come. Bytes are whole numbers."""
    return {
        "model": f.recipe.model.name,
        "num_parameters": f.num_parameters,
        "num_trained": f.num_trained,
        "dtype": f.recipe.train.dtype,
        "recompute": f.recipe.train.recompute,
        "world_size": f.parallel.num_processes,
        "mesh": {axis: getattr(f.parallel, axis) for axis in AXES},
        "batch_size": f.recipe.train.batch_size,
        "assumed": list(f.assumed),
        "worst_rank": f.worst.rank,
        "ranks": [_rank_json(each) for each in f.ranks],
    }


def size(num_bytes: int) -> str:
    """In the largest unit of which there is one."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= one:
            return f"{num_bytes / one:.3g} {unit}" if num_bytes < 1000 * one else f"{num_bytes / one:,.0f} {unit}"
    return f"{num_bytes} B"


def _rank_json(each: RankForecast) -> dict[str, Any]:
    return {
        "rank": each.rank,
        "stages": list(each.stages),
        "num_samples": each.num_samples,
        "num_micro_batches": each.num_micro,
        "bytes": held_json(each.held),
        "collectives": [
            {"axes": list(row.axes), "kind": row.kind, "count": row.num_calls, "bytes": row.num_bytes}
            for row in each.traffic
        ],
    }


def held_json(held: Bytes) -> dict[str, int]:
    """By kind, with their total."""
    return {**asdict(held), "total": held.total}


def _stages(each: RankForecast) -> str:
    return "+".join(map(str, each.stages))


def _name(each: RankForecast) -> str:
    return f"rank {each.rank}"
