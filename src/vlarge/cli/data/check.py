"""`vlarge data check`: every fault of a dataset, by episode and file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlarge.cli.data.opening import Keys, open_path
from vlarge.cli.show import console, print_json, printable, progress
from vlarge.contracts import InputError

if TYPE_CHECKING:
    from vlarge.data.check import Fault
    from vlarge.data.index import Dataset

STYLES = {"report": "yellow", "quarantine": "magenta", "refuse": "bold red"}


@dataclass(frozen=True)
class Check(Keys):
    """Name every fault of a dataset.

    Exit code 0: nothing, or only oddities that are read all the same; 1: something has to be left out; 2: refused.

    Example: vlarge data check my_dataset --deep --quarantine quarantine.json
    """

    path: tyro.conf.Positional[str]
    """A dataset folder, an object store's address, or hf://user/name."""
    deep: bool = False
    """Decode every frame of every camera as well."""
    quarantine: Path | None = None
    """Write the episodes to leave out to this file, for training with --data.quarantine FILE."""
    json: bool = False
    """Print JSON."""


def check(arguments: Check) -> int:
    from vlarge.data.check import Refused

    try:
        dataset = open_path(arguments.path, arguments)
    except Refused as refusal:
        return _answer(arguments, 0, (refusal.fault,))
    except InputError as error:
        if not arguments.json:
            raise
        return _answer(arguments, 0, (_no_dataset(arguments.path, error),))
    faults = [*dataset.faults, *(_decoded_faults(arguments, dataset) if arguments.deep else ())]
    if arguments.quarantine:
        from vlarge.data.quarantine import write_list

        write_list(arguments.quarantine, dataset.revision, faults)
    broken = {f.episode for f in faults if f.action == "quarantine" and f.frames is None}
    num_usable = sum(e.index not in broken for e in dataset.episodes)
    if not num_usable:
        faults.append(_no_episode(arguments.path))
    return _answer(arguments, num_usable, faults)


def _decoded_faults(arguments: Check, dataset: Dataset) -> list[Fault]:
    from vlarge.data.deep import deep_check

    with progress("decoding", dataset.num_frames * len(dataset.camera_keys)) as tell:
        return deep_check(arguments.source_at(arguments.path), dataset, tell)


def _no_dataset(path: str, error: InputError) -> Fault:
    from vlarge.data.check import Fault, one_line

    return Fault("not_a_dataset", "refuse", None, path, one_line(str(error)))


def _no_episode(path: str) -> Fault:
    from vlarge.data.check import Fault

    return Fault("no_episode", "refuse", None, path, "no episode to train on")


def _answer(arguments: Check, num_episodes: int, faults: Sequence[Fault]) -> int:
    """Print the verdict and return its exit code."""
    actions = {fault.action for fault in faults}
    code = 2 if "refuse" in actions else 1 if "quarantine" in actions else 0
    if arguments.json:
        print_json({"ok": code == 0, "num_episodes_ok": num_episodes, "faults": [asdict(fault) for fault in faults]})
        return code
    verdict = ("good", "usable, without what is in quarantine", "refused")[code]
    noun = "episode" if num_episodes == 1 else "episodes"
    console().print(f"\n{arguments.path}: {verdict}. {num_episodes} {noun} can be read.\n", markup=False)
    if faults:
        print_faults(faults)
    return code


def print_faults(faults: Sequence[Fault]) -> None:
    """Faults of one kind together, with the first one's file and detail; `--json` has each."""
    from rich.padding import Padding
    from rich.text import Text

    from vlarge.data.check import as_ranges

    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.action, fault.kind), []).append(fault)
    paper = console()
    for (action, kind), group in groups.items():
        episodes = sorted({fault.episode for fault in group if fault.episode is not None})
        head = Text.assemble((f"{action:<11}", STYLES[action]), (kind, "bold"))
        if episodes:
            head.append(f"  episode{'s' * (len(episodes) > 1)} {as_ranges(episodes)}")
        paper.print(head)
        paper.print(Padding(Text(printable(f"{group[0].file}: {group[0].detail}"), "dim"), (0, 0, 1, 11), expand=False))
