"""The stages that a recipe's [data] table asks for, fitted to a dataset, and the statistics of what they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.config import PreparedSource
from vlarge.data.features import dimension_names
from vlarge.data.stats import Accumulator, FeatureStats, dataset_stats, merge
from vlarge.data.transforms.stages import Chain, Relative, Rename, Rescale, Select, Stage

if TYPE_CHECKING:
    from vlarge.data.index import Dataset


def chain_for(config: PreparedSource, dataset: Dataset, action_mean_A: np.ndarray) -> Chain:
    """The chain of stages; empty where the recipe asks for none.

    action_mean_A: what an action dimension that is not kept gets when a policy acts. Raises InputError for a dimension
    that the dataset does not have, and for a number of cameras or of scales that does not fit.
    """
    state_names = dimension_names(dataset.features.get(config.state_key, {}), dataset.state_dim)
    action_names = dimension_names(dataset.features.get(config.action_key, {}), dataset.action_dim)
    state_dims = _find("data.state_dims", config.state_dims, state_names) or tuple(range(dataset.state_dim))
    action_dims = _find("data.action_dims", config.action_dims, action_names) or tuple(range(dataset.action_dim))
    stages: list[Stage] = []
    if config.camera_slots:
        stages.append(Rename(tuple(camera_slots(config, dataset).items())))
    if config.state_dims or config.action_dims:
        stages.append(Select(dataset.state_dim, state_dims, action_dims, tuple(action_mean_A.tolist())))
    stages += _rescale(config, len(state_dims), len(action_dims))
    if config.relative_actions:
        wanted = _find("data.relative_actions", config.relative_actions, action_names)
        stages.append(Relative(_places(wanted, action_dims, action_names, len(state_dims))))
    return Chain(tuple(stages))


def prepared_stats(
    datasets: Sequence[Dataset], chains: Sequence[Chain], horizon: int, index_dir: str
) -> dict[str, FeatureStats]:
    """Statistics of state and action over the usable episodes of datasets of one embodiment, as their chains give them.

    horizon: steps of a chunk (see `Chain.action_rows`). index_dir: where those of a dataset as it is are kept. Raises
    InputError when the chains give different dimensions.
    """
    if len(datasets) == 1 and chains[0].keeps_numbers:
        return dataset_stats(datasets[0], index_dir)
    parts = [_accumulated(dataset, chain, horizon) for dataset, chain in zip(datasets, chains, strict=True)]
    return {key: merge([part[key] for part in parts]).result() for key in (STATE, ACTION)}


def _accumulated(dataset: Dataset, chain: Chain, horizon: int) -> dict[str, Accumulator]:
    found = {STATE: Accumulator(), ACTION: Accumulator()}
    for episode in dataset.episodes:
        table = dataset.read_table(episode)
        found[STATE].add(_finite(chain.state(table.state_TA)))
        for rows in chain.action_rows(table.state_TA, table.action_TA, horizon):
            found[ACTION].add(_finite(rows))
    return found


def _finite(rows: np.ndarray) -> np.ndarray:
    return rows[np.isfinite(rows).all(1)]


def camera_slots(config: PreparedSource, dataset: Dataset) -> dict[str, str]:
    """Feature key -> the model's name of each camera in use. Raises InputError when there are not as many names."""
    keys, names = dataset.camera_keys, config.camera_slots or dataset.camera_keys
    if len(names) != len(keys):
        raise InputError(f"data.camera_slots names {len(names)} cameras, in use are {len(keys)}: {', '.join(keys)}")
    return dict(zip(keys, names, strict=True))


def _find(setting: str, wanted: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    found: list[int] = []
    for text in wanted:
        start, colon, stop = text.partition(":")
        if text in names:
            found.append(names.index(text))
        elif colon and all(end.isdecimal() or not end for end in (start, stop)):
            found += range(len(names))[slice(int(start or 0), int(stop or len(names)))]
        elif text.isdecimal() and int(text) < len(names):
            found.append(int(text))
        else:
            raise InputError(f"{setting}: there is no dimension {text!r}; the dataset has {', '.join(names)}")
    if (wanted and not found) or len(set(found)) < len(found):
        raise InputError(f"{setting} = {', '.join(wanted)} names a dimension twice, or none")
    return tuple(found)


def _rescale(config: PreparedSource, state_dim: int, action_dim: int) -> list[Stage]:
    given = [
        ("state_scale", state_dim, 1.0),
        ("state_offset", state_dim, 0.0),
        ("action_scale", action_dim, 1.0),
        ("action_offset", action_dim, 0.0),
    ]
    if not any(getattr(config, name) for name, _, _ in given):
        return []
    for name, num_dims, _ in given:
        if (values := getattr(config, name)) and len(values) != num_dims:
            raise InputError(f"data.{name} has {len(values)} values; there are {num_dims} kept dimensions")
    return [Rescale(*(getattr(config, name) or (neutral,) * num_dims for name, num_dims, neutral in given))]


def _places(wanted: Sequence[int], action_dims: Sequence[int], names: Sequence[str], state_dim: int) -> tuple[int, ...]:
    # Where the wanted dimensions of the dataset are among the kept ones.
    for dim in wanted:
        if dim not in action_dims:
            raise InputError(f"data.relative_actions has {names[dim]}, which data.action_dims leaves out")
    places = tuple(action_dims.index(dim) for dim in wanted)
    if max(places) >= state_dim:
        raise InputError(f"data.relative_actions: action dimension {max(places)} has no state dimension beside it")
    return places
