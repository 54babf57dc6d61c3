"""`vlarge data info` and `vlarge data stats`: what a dataset holds."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from vlarge.cli.data.check import print_faults
from vlarge.cli.data.opening import open_path
from vlarge.cli.show import console, print_json, print_table


@dataclass(frozen=True)
class Info:
    """Print what a dataset holds.

    Example: vlarge data info my_dataset
    """

    path: tyro.conf.Positional[str]
    """A LeRobot dataset folder, an object store's address, or hf://user/name."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Stats:
    """Print the exact statistics of states and actions, over every usable episode.

    Example: vlarge data stats my_dataset
    """

    path: tyro.conf.Positional[str]
    """A LeRobot dataset folder, an object store's address, or hf://user/name."""
    json: bool = False
    """Print JSON."""


def info(arguments: Info) -> int:
    from vlarge.data.index import summary

    dataset = open_path(arguments.path)
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
        print_faults(dataset.faults)
    return 0


def stats(arguments: Stats) -> int:
    from vlarge.data.stats import dataset_stats

    found = {key: feature.to_json() for key, feature in dataset_stats(open_path(arguments.path)).items()}
    if arguments.json:
        print_json(found)
        return 0
    columns = ("min", "q01", "mean", "q99", "max", "std")
    for key, feature in found.items():
        dims = zip(*(feature[name] for name in columns), strict=True)
        rows = [(dim, *(f"{value:.4g}" for value in values)) for dim, values in enumerate(dims)]
        print_table(f"{key}, {feature['count']} rows", ("dim", *columns), rows)
    return 0
