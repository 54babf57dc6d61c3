"""`vlarge data check`: every fault of a dataset, by episode and file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import tyro

from vlarge.cli.data.opening import open_path
from vlarge.cli.show import console, print_json

if TYPE_CHECKING:
    from vlarge.data.check import Fault

STYLES = {"report": "yellow", "quarantine": "magenta", "refuse": "bold red"}


@dataclass(frozen=True)
class Check:
    """Name every fault of a dataset.

    Exit code 0: nothing, or only oddities that are read all the same; 1: episodes have to be left out; 2: refused.

    Example: vlarge data check my_dataset
    """

    path: tyro.conf.Positional[str]
    """A LeRobot dataset folder, an object store's address, or hf://user/name."""
    json: bool = False
    """Print JSON."""


def check(arguments: Check) -> int:
    num_episodes, faults = _faults(arguments.path)
    actions = {fault.action for fault in faults}
    code = 2 if "refuse" in actions else 1 if "quarantine" in actions else 0
    if arguments.json:
        print_json({"ok": code == 0, "num_episodes_ok": num_episodes, "faults": [asdict(fault) for fault in faults]})
    else:
        verdict = ("good", "usable, without the episodes in quarantine", "refused")[code]
        console().print(f"\n{arguments.path}: {verdict}. {num_episodes} episodes can be read.\n", markup=False)
        if faults:
            print_faults(faults)
    return code


def _faults(path: str) -> tuple[int, Sequence[Fault]]:
    """How many episodes can be read, and every fault; having none at all is one."""
    from vlarge.data.check import Fault, Refused

    try:
        dataset = open_path(path)
    except Refused as refusal:
        return 0, (refusal.fault,)
    if dataset.episodes:
        return len(dataset.episodes), dataset.faults
    return 0, (*dataset.faults, Fault("no_episode", "refuse", None, "meta/info.json", "no episode to train on"))


def print_faults(faults: Sequence[Fault]) -> None:
    """Faults of one kind together, with the first one's file and detail; `--json` has each."""
    from rich.padding import Padding
    from rich.text import Text

    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.action, fault.kind), []).append(fault)
    paper = console()
    for (action, kind), group in groups.items():
        episodes = sorted(fault.episode for fault in group if fault.episode is not None)
        head = Text.assemble((f"{action:<11}", STYLES[action]), (kind, "bold"))
        if episodes:
            head.append(f"  episode{'s' * (len(episodes) > 1)} {_ranges(episodes)}")
        paper.print(head)
        paper.print(Padding(Text(f"{group[0].file}: {group[0].detail}", "dim"), (0, 0, 1, 11), expand=False))


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: 0–2, 5."""
    starts = [n for n, before in zip(numbers, [None, *numbers], strict=False) if before is None or n != before + 1]
    stops = [n for n, after in zip(numbers, [*numbers[1:], None], strict=True) if after is None or n != after - 1]
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in zip(starts, stops, strict=True))
