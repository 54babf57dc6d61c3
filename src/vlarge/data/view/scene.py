"""What of one episode is shown, whatever it is drawn on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.config import Source
from vlarge.data.features import dimension_names
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.manifest import Episode


@dataclass(frozen=True)
class Curves:
    """The numbers of one feature, float32 [T, dim], with a name for each dimension."""

    title: str
    values_TA: np.ndarray
    names: tuple[str, ...]

    @cached_property
    def drawn_TA(self) -> np.ndarray:
        """The same, where each number that is not finite is the one before it; 0 where there is none."""
        good = np.isfinite(self.values_TA)
        last = np.maximum.accumulate(np.where(good, np.arange(len(good))[:, None], -1), axis=0)
        held = np.take_along_axis(self.values_TA, np.maximum(last, 0), axis=0)
        return np.where(last >= 0, held, 0)


@dataclass(frozen=True)
class Scene:
    """One episode.

    tasks: (first frame, text), in order of frames. faults: what is odd about the episode, one line each.
    """

    dataset: Dataset
    episode: Episode
    cameras: tuple[str, ...]
    tasks: tuple[tuple[int, str], ...]
    faults: tuple[str, ...]
    curves: tuple[Curves, ...]

    @property
    def title(self) -> str:
        return f"{Path(str(self.dataset.root)).name} · episode {self.episode.index}"

    @property
    def subtitle(self) -> str:
        length, fps = self.episode.length, self.dataset.fps
        return f"{length:,} frame{'s' * (length != 1)} · {length / fps:.1f} s at {fps:g} fps · {self.dataset.format}"

    def pictures(self, camera: str, frames: Sequence[int]) -> Iterator[np.ndarray]:
        """uint8 [H, W, 3] of these frames (ascending), one at a time."""
        return self.dataset.iter_frames(self.episode, camera, frames)


def open_scene(
    source: Source,
    number: int,
    cameras: Sequence[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> Scene:
    """Episode `number` of a dataset, seen by `cameras` (by name or its last part; none means all).

    on_progress: as for `open_dataset`.
    Raises InputError for an episode that does not exist or cannot be read, and for a camera that is unknown or may be
    several.
    """
    dataset = open_dataset(source, on_progress=on_progress)
    episode = _episode(dataset, number)
    table = dataset.read_table(episode)
    changes = [t for t, task in enumerate(table.tasks) if t == 0 or task != table.tasks[t - 1]]
    return Scene(
        dataset=dataset,
        episode=episode,
        cameras=tuple(_camera(dataset, name) for name in cameras) or dataset.camera_keys,
        tasks=tuple((t, table.tasks[t]) for t in changes),
        faults=tuple(f"{f.kind}: {f.file}: {f.detail}" for f in dataset.faults if f.episode == number),
        curves=(
            Curves("State", table.state_TA, _names(dataset, source.state_key, dataset.state_dim)),
            Curves("Action", table.action_TA, _names(dataset, source.action_key, dataset.action_dim)),
        ),
    )


def _episode(dataset: Dataset, number: int) -> Episode:
    found = {episode.index: episode for episode in dataset.episodes}
    if number in found:
        return found[number]
    fault = next((f for f in dataset.faults if f.episode == number), None)
    if fault is not None:
        raise InputError(f"{dataset.root}: episode {number} cannot be shown: {fault}")
    if not found:
        raise InputError(f"{dataset.root}: no episode can be read; `vlarge data check` says why")
    raise InputError(f"{dataset.root}: no episode {number}; those that can be read are {_span(list(found))}")


def _span(numbers: Sequence[int]) -> str:
    gaps = "" if len(numbers) == numbers[-1] - numbers[0] + 1 else f" ({len(numbers)} of them)"
    return f"{numbers[0]} to {numbers[-1]}{gaps}"


def _names(dataset: Dataset, key: str, num_dims: int) -> tuple[str, ...]:
    return tuple(dimension_names(dataset.features.get(key, {}), num_dims))


def _camera(dataset: Dataset, name: str) -> str:
    keys = dataset.camera_keys
    meant = [key for key in keys if key == name] or [key for key in keys if key.rpartition(".")[2] == name]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise InputError(f"{dataset.root}: camera {name} may be {' or '.join(meant)}; give the whole name")
    close = difflib.get_close_matches(name, [*(key.rpartition(".")[2] for key in keys), *keys], 1)
    hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(keys) or 'none'}"
    raise InputError(f"{dataset.root}: no camera {name}; {hint}")
