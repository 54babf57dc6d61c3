"""`vlarge data info` and `vlarge data stats`: what a dataset holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import tyro

from vlarge.cli.data.check import print_faults
from vlarge.cli.data.opening import Keys, open_path
from vlarge.cli.show import console, print_json, print_table

if TYPE_CHECKING:
    import numpy as np

    from vlarge.data.index import Dataset
    from vlarge.data.stats import Accumulator, FeatureStats, Survey


@dataclass(frozen=True)
class Info(Keys):
    """Print what a dataset holds.

    Example: vlarge data info my_dataset
    """

    path: tyro.conf.Positional[str]
    """A dataset folder, an object store's address, or hf://user/name."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Stats(Keys):
    """Print the statistics of states and actions, from every row of finite numbers in every usable episode.

    Example: vlarge data stats my_dataset --by task
    """

    path: tyro.conf.Positional[str]
    """A dataset folder, an object store's address, or hf://user/name."""
    by: Literal["dataset", "episode", "task"] = "dataset"
    """What rows are taken together."""
    json: bool = False
    """Print JSON."""


def info(arguments: Info) -> int:
    from vlarge.data.check import states_rate
    from vlarge.data.index import summary

    dataset = open_path(arguments.path, arguments)
    if arguments.json:
        print_json(summary(dataset))
        return 0
    cameras = [
        (key, f"{camera.height} × {camera.width}", camera.codec, "" if camera.present else "no files")
        for key, camera in dataset.cameras.items()
    ]
    numbers = [(key, f["dtype"], f["shape"]) for key, f in dataset.features.items() if key not in dataset.cameras]
    rate = f"{dataset.fps:g} fps" if states_rate(dataset) else f"an unknown rate (time is shown at {dataset.fps:g} fps)"
    counts = f"{len(dataset.episodes)} episodes, {dataset.num_frames} frames"
    console().print(f"\n{dataset.root}: {dataset.format}, {counts} at {rate}\n", markup=False)
    print_table("Cameras", ("key", "height × width", "codec", ""), cameras)
    print_table("Features", ("key", "type", "shape"), numbers)
    print_table("Tasks", ("instruction",), [(task,) for task in dataset.tasks])
    if dataset.faults:
        print_faults(dataset.faults)
    return 0


def stats(arguments: Stats) -> int:
    from vlarge.data.stats import survey

    dataset = open_path(arguments.path, arguments)
    by_episode, by_task = arguments.by == "episode", arguments.by == "task"
    found = survey(dataset, by_episode=by_episode, by_task=by_task)
    if by_episode:
        _show({str(number): stats for number, stats in found.by_episode.items()}, "episode ", arguments.json)
    elif by_task:
        _show(found.by_task, "", arguments.json)
    else:
        _show_whole(dataset, found, arguments.json)
    return 0


def _show(groups: dict[str, dict[str, FeatureStats]], prefix: str, as_json: bool) -> None:
    if as_json:
        print_json({name: {key: s.to_json() for key, s in stats.items()} for name, stats in groups.items()})
        return
    for name, stats in groups.items():
        for key, feature in stats.items():
            _print_feature(f"{prefix}{name}: {key}, {feature.count} rows", feature)


def _show_whole(dataset: Dataset, found: Survey, as_json: bool) -> None:
    stats = {key: accumulator.result() for key, accumulator in found.whole.items()}
    if as_json:
        print_json({key: feature.to_json() for key, feature in stats.items()})
        return
    for key, feature in stats.items():
        _print_feature(f"{key}, {feature.count} rows, quantiles {_precision(found.whole[key])}", feature)
    if skipped := dataset.num_frames - next(iter(stats.values())).count:
        console().print(f"{skipped} rows with NaN or inf are left out.")
    for line in _declared(dataset, stats):
        console().print(line, markup=False)


def _print_feature(title: str, feature: FeatureStats) -> None:
    columns = ("min", "q01", "mean", "q99", "max", "std")
    dims = zip(*(getattr(feature, name) for name in columns), strict=True)
    rows = [(dim, *map(_cell, values)) for dim, values in enumerate(dims)]
    print_table(title, ("dim", *columns), rows)


def _cell(value: float) -> str:
    """Four digits where they fit nine characters: seven columns then fit 80."""
    text = f"{value:.4g}"
    return text if len(text) <= 9 else f"{value:.3g}"


def _precision(accumulator: Accumulator) -> str:
    """The largest error of q01 and q99."""
    worst = _share(accumulator.quantile_errors((0.01, 0.99)), accumulator.max - accumulator.min)
    return f"within {worst:.1g} of the range" if worst else "exact"


def _declared(dataset: Dataset, stats: dict[str, FeatureStats]) -> list[str]:
    """How far off the quantiles are that a LeRobot dataset declares itself, where it does. Nothing else reads them."""
    import json

    import numpy as np

    lines = []
    for column, (key, feature) in zip((dataset.state_key, dataset.action_key), stats.items(), strict=True):
        try:
            declared = json.loads(dataset.store.read("meta/stats.json"))[column]
            off = np.array([declared["q01"] - feature.q01, declared["q99"] - feature.q99])
        except (OSError, ValueError, RecursionError, LookupError, TypeError):
            continue
        worst = _share(np.abs(off), feature.max - feature.min)
        found = f"are off by up to {worst:.1%} of the range" if worst >= 0.0005 else "agree"
        lines.append(f"{key}: q01 and q99 in meta/stats.json {found}.")
    return lines


def _share(errors: np.ndarray, span: np.ndarray) -> float:
    """The largest of errors [n, dim] as a part of the range; a dimension that is constant has none."""
    moves = span > 0
    return float((errors[:, moves] / span[moves]).max(initial=0))
