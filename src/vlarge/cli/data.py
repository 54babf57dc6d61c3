"""`vlarge data`: look at a dataset, check it, measure it, record one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vlarge.cli.arguments import Command, choose
from vlarge.cli.show import console, print_json, print_table, progress
from vlarge.sim.config import SimConfig

if TYPE_CHECKING:
    from vlarge.data.check import Fault
    from vlarge.data.index import Dataset

HELP = "look at, check, measure or record a dataset"

STYLES = {"report": "yellow", "quarantine": "magenta", "refuse": "bold red"}


@dataclass(frozen=True)
class Info:
    """Print what a dataset holds.

    Example: vlarge data info my_dataset
    """

    path: tyro.conf.Positional[str]
    """A LeRobot dataset folder, or hf://user/name."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Check:
    """Name every fault of a dataset.

    Exit code 0: nothing, or only oddities that are read all the same; 1: episodes have to be left out; 2: refused.

    Example: vlarge data check my_dataset
    """

    path: tyro.conf.Positional[str]
    """A LeRobot dataset folder, or hf://user/name."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Stats:
    """Print the exact statistics of states and actions, over every usable episode.

    Example: vlarge data stats my_dataset
    """

    path: tyro.conf.Positional[str]
    """A LeRobot dataset folder, or hf://user/name."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Record:
    """Record demonstrations of a simulator's scripted experts as a LeRobot v3.0 dataset.

    Example: vlarge data record --env metaworld/reach-v3 --env metaworld/door-open-v3 --episodes 20 --out demos
    """

    out: Path
    """The new dataset's folder; it must not exist."""
    env: tyro.conf.UseAppendAction[tuple[str, ...]]
    """A task, as `vlarge sim list` names it. Repeat the option for several."""
    episodes: int = 10
    """Successful episodes per task."""
    seed: int = 0
    first_init_id: int = 1000
    """The number of each task's first episode. Evaluations start at 0: a policy is not judged on what it has seen."""
    workers: int = 2
    """Processes. The dataset does not depend on it."""
    tail_steps: int = 4
    """Steps recorded after the first success."""
    action_noise: float = 0.0
    """Standard deviation of the noise on executed actions; what is recorded is the expert's action without it."""
    noise_hold_steps: int = 1
    """Steps for which one draw of that noise is held."""
    sim: SimConfig = field(default_factory=SimConfig)
    json: bool = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    commands = {
        "info": Command(Info, _info),
        "check": Command(Check, _check),
        "stats": Command(Stats, _stats),
        "record": Command(Record, _record),
    }
    return choose("data", commands, argv)


def _open(path: str) -> Dataset:
    from vlarge.data.config import DataConfig
    from vlarge.data.index import open_dataset

    return open_dataset(DataConfig(path=path))


def _info(arguments: Info) -> int:
    from vlarge.data.index import summary

    dataset = _open(arguments.path)
    if arguments.json:
        print_json(summary(dataset))
        return 0
    cameras = [
        (key, f"{camera.height} × {camera.width}", camera.codec, "" if camera.present else "no files")
        for key, camera in dataset.cameras.items()
    ]
    numbers = [(key, f["dtype"], f["shape"]) for key, f in dataset.features.items() if key not in dataset.cameras]
    console().print(
        f"\n{dataset.root}: {dataset.format}, {len(dataset.episodes)} episodes, {dataset.num_frames} frames "
        f"at {dataset.fps:g} fps\n",
        markup=False,
    )
    print_table("Cameras", ("key", "height × width", "codec", ""), cameras)
    print_table("Features", ("key", "type", "shape"), numbers)
    print_table("Tasks", ("instruction",), [(task,) for task in dataset.tasks])
    if dataset.faults:
        _print_faults(dataset.faults)
    return 0


def _check(arguments: Check) -> int:
    num_episodes, faults = _faults(arguments.path)
    actions = {fault.action for fault in faults}
    code = 2 if "refuse" in actions else 1 if "quarantine" in actions else 0
    if arguments.json:
        print_json({"ok": code == 0, "num_episodes_ok": num_episodes, "faults": [asdict(fault) for fault in faults]})
    else:
        verdict = ("good", "usable, without the episodes in quarantine", "refused")[code]
        console().print(f"\n{arguments.path}: {verdict}. {num_episodes} episodes can be read.\n", markup=False)
        if faults:
            _print_faults(faults)
    return code


def _faults(path: str) -> tuple[int, tuple[Fault, ...]]:
    """How many episodes can be read, and every fault; having none at all is one."""
    from vlarge.data.check import Fault, Refused

    try:
        dataset = _open(path)
    except Refused as refusal:
        return 0, (refusal.fault,)
    if dataset.episodes:
        return len(dataset.episodes), dataset.faults
    return 0, (*dataset.faults, Fault("no_episode", "refuse", None, "meta/info.json", "no episode to train on"))


def _print_faults(faults: Sequence[Fault]) -> None:
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


def _stats(arguments: Stats) -> int:
    from vlarge.data.stats import dataset_stats

    stats = {key: feature.to_json() for key, feature in dataset_stats(_open(arguments.path)).items()}
    if arguments.json:
        print_json(stats)
        return 0
    columns = ("min", "q01", "mean", "q99", "max", "std")
    for key, feature in stats.items():
        dims = zip(*(feature[name] for name in columns), strict=True)
        rows = [(dim, *(f"{value:.4g}" for value in values)) for dim, values in enumerate(dims)]
        print_table(f"{key}, {feature['count']} rows", ("dim", *columns), rows)
    return 0


def _record(arguments: Record) -> int:
    from vlarge.loop.record import RecordedEpisode, record

    num_frames = 0
    num_episodes = arguments.episodes * len(arguments.env)
    with progress("recording", num_episodes) as tell:

        def on_episode(episode: RecordedEpisode) -> None:
            nonlocal num_frames
            num_frames += len(episode.actions)
            tell(f"{episode.key.task} {episode.key.init_id}: {len(episode.actions)} steps", 1)

        record(
            arguments.env,
            arguments.sim,
            arguments.out,
            episodes_per_task=arguments.episodes,
            seed=arguments.seed,
            first_init_id=arguments.first_init_id,
            workers=arguments.workers,
            tail_steps=arguments.tail_steps,
            action_noise=arguments.action_noise,
            noise_hold_steps=arguments.noise_hold_steps,
            on_episode=on_episode,
        )
    if arguments.json:
        print_json({"path": str(arguments.out), "num_episodes": num_episodes, "num_frames": num_frames})
    else:
        console().print(f"{arguments.out}: {num_episodes} episodes, {num_frames} frames", markup=False)
    return 0
