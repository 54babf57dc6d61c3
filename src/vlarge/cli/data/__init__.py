"""`vlarge data`: look at a dataset, check it, measure it, record one."""

from __future__ import annotations

from collections.abc import Sequence

HELP = "look at, check, measure or record a dataset"


def run(argv: Sequence[str]) -> int:
    from vlarge.cli.arguments import Command, choose
    from vlarge.cli.data import check, look, record

    commands = {
        "info": Command(look.Info, look.info),
        "check": Command(check.Check, check.check),
        "stats": Command(look.Stats, look.stats),
        "record": Command(record.Record, record.record),
    }
    return choose("data", commands, argv)
