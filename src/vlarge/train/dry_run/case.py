"""What is trained in a dry run: a model of its full size, and samples like a dataset's, or like none in particular."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import IMAGE_PREFIX, PackedBatch, Sample, SampleId
from vlarge.data.check import require_trainable
from vlarge.data.pack import equal_counts, pack, share_out
from vlarge.models.audit import Audit
from vlarge.models.config import ModelConfig
from vlarge.models.network import PolicyNetwork
from vlarge.models.presets import Sizes
from vlarge.models.registry import find_family
from vlarge.recipe import Recipe
from vlarge.train.config import ParallelConfig, TrainConfig
from vlarge.train.feeding import open_data
from vlarge.train.fit import audit_samples, fit, longest_sample, num_tokens, sized_network

CAMERAS, TEXT_TOKENS, DIMS = 3, 64, 7  # of a sample of no dataset: one arm with a gripper, seen from three sides


@dataclass(frozen=True)
class Case:
    """samples: one for each dataset, with every camera, the longest task and all action steps; shares: of each in a
    batch. audit: what of the model is trained on them. assumed: what was not at hand, in words.
    """

    model: ModelConfig
    sizes: Sizes
    samples: tuple[Sample, ...]
    shares: tuple[float, ...]
    audit: Audit
    assumed: tuple[str, ...] = ()

    def network(self) -> PolicyNetwork[Any, Any]:
        """As it is trained, on torch's meta device."""
        network = sized_network(self.model, self.sizes)
        for name in self.audit.dead:
            network.get_parameter(name).requires_grad_(False)
        return network

    def batch(self, batch_size: int) -> list[Sample]:
        """The samples of one global batch."""
        ends = np.cumsum(self.shares) / sum(self.shares)
        which = np.searchsorted(ends, (np.arange(batch_size) + 0.5) / batch_size)
        return [replace(self.samples[k], id=SampleId(int(k), 0, i)) for i, k in enumerate(which)]

    def costs(self, samples: Sequence[Sample], num_draws: int) -> np.ndarray:
        """int64 [samples]: tokens, as `data.pack` counts them."""
        return np.array([num_tokens(sample, self.sizes, num_draws) for sample in samples])


def shared_out(case: Case, c: TrainConfig, degrees: ParallelConfig) -> list[list[list[Sample]]]:
    """The samples of each micro-batch of each share of a global batch. Raises InputError for a sample over budget."""
    samples = case.batch(c.batch_size)
    costs = case.costs(samples, c.suffixes_per_prefix)
    ranks = share_out(costs, np.arange(len(costs)), 1, degrees.num_data)
    owned = [np.flatnonzero(ranks == rank) for rank in range(degrees.num_data)]
    split = equal_counts([costs[own] for own in owned], c.budget_tokens, degrees.num_micro)
    return [[[samples[i] for i in own[members]] for members in parts] for own, parts in zip(owned, split, strict=True)]


def packed(micro_batches: Sequence[Sequence[Sample]]) -> list[PackedBatch]:
    """One process's share, as it gets it."""
    return [pack(samples) for samples in micro_batches]


def case_of(recipe: Recipe) -> Case:
    """By the recipe's dataset where it is on this machine, else by assumptions. Raises InputError as a run would."""
    missing = _missing(recipe)
    if missing:
        return _assumed(recipe, missing)
    datasets = open_data(recipe.data)
    for dataset in datasets:
        require_trainable(dataset)
    plan = fit(recipe, datasets)
    samples = tuple(longest_sample(p, dataset) for p, dataset in zip(plan.preparations, datasets, strict=True))
    audit = audit_samples(plan.model, plan.sizes, samples, recipe.train.suffixes_per_prefix)
    return Case(plan.model, plan.sizes, samples, tuple(part.weight for part in recipe.data.parts()), audit)


def _missing(recipe: Recipe) -> str:
    # Why the recipe's data or weights cannot be looked at here; a dry run downloads nothing.
    data = recipe.data
    if not (data.path or data.mixture):
        return "the recipe names no dataset"
    places = [*(part.path for part in data.parts()), *([recipe.model.init] if recipe.model.init else [])]
    absent = [place for place in places if not Path(place).expanduser().exists()]
    return f"{absent[0]} is not on this machine" if absent else ""


def _assumed(recipe: Recipe, missing: str) -> Case:
    model = recipe.model
    sizes = find_family(model.name).resolve(model, vocab_size=1, state_dim=DIMS, action_dim=DIMS)
    cameras = recipe.data.cameras or tuple(f"{IMAGE_PREFIX}{number}" for number in range(CAMERAS))
    sample = _sample(sizes, cameras)
    audit = audit_samples(model, sizes, [sample], recipe.train.suffixes_per_prefix)
    words = [
        f"{missing}: {len(cameras)} cameras, {TEXT_TOKENS} text tokens, {DIMS} state and action dimensions,"
        f" {sizes.action_horizon} action steps"
    ]
    if model.init:
        words.append(f"sizes of model.preset {model.preset!r}, for those of model.init")
    return Case(model, sizes, (sample,), (1.0,), audit, tuple(words))


def _sample(sizes: Sizes, cameras: Sequence[str]) -> Sample:
    picture = np.zeros((sizes.image_size, sizes.image_size, 3), np.uint8)
    return Sample(
        SampleId(0, 0, 0), dict.fromkeys(cameras, picture), np.zeros(TEXT_TOKENS, np.int64),
        np.zeros(DIMS, np.float32), np.zeros((sizes.action_horizon, DIMS), np.float32),
    )  # fmt: skip
