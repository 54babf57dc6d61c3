"""`vlarge data`: look at a dataset, check it, measure it, record, convert or draw one."""

from __future__ import annotations

from collections.abc import Sequence

HELP = "look at, check, measure, record, convert or draw a dataset"


def run(argv: Sequence[str]) -> int:
    from vlarge.cli.arguments import Command, choose
    from vlarge.cli.data import bench, check, convert, look, record, view

    commands = {
        "info": Command(look.Info, look.info),
        "check": Command(check.Check, check.check),
        "stats": Command(look.Stats, look.stats),
        "bench": Command(bench.Bench, bench.bench),
        "convert": Command(convert.Convert, convert.convert),
        "view": Command(view.View, view.view),
        "record": Command(record.Record, record.record),
    }
    return choose("data", commands, argv)
