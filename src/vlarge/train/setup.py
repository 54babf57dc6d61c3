"""What a recipe and a dataset make together: how samples are prepared, how large the model is, its first weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.config import DataConfig
from vlarge.data.hub import resolve
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.order import Order
from vlarge.data.service.stream import Stream
from vlarge.data.stats import dataset_stats
from vlarge.data.tokens import load_tokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.models.registry import find_family
from vlarge.policy.files import PolicyFiles, build_model, read_policy
from vlarge.recipe import Recipe
from vlarge.train.parallel.mesh import World


@dataclass(frozen=True)
class Plan:
    """model_name, sizes: the network. init: a policy whose weights it starts from."""

    model_name: str
    sizes: Any
    preparation: Preparation
    init: PolicyFiles | None

    def build(self, seed: int, device: torch.device) -> Any:
        """The network with its first weights, the same on every process."""
        if self.init is not None:
            return self.init.build(device).train()
        torch.manual_seed(seed)
        model: Any = build_model(self.model_name, self.sizes, device)
        model.embed_in_order(self.preparation.tokenizer.ordered_ids)
        return model


def open_data(data: DataConfig) -> Dataset:
    """The dataset of a recipe's [data] table. Raises InputError, as `open_dataset` does."""
    return open_dataset(
        data,
        data.index_dir,
        remote_cache_bytes=data.remote_cache_bytes,
        remote_deadline_s=data.remote_deadline_s,
    )


def plan(recipe: Recipe, dataset: Dataset) -> Plan:
    """Fit the recipe to the dataset. Raises InputError where they do not go together."""
    if recipe.model.init:
        return _plan_from(read_policy(resolve(recipe.model.init, repo_type="model")), recipe, dataset)
    tokenizer = load_tokenizer(recipe.data.tokenizer)
    sizes = find_family(recipe.model.name).resolve(
        recipe.model, vocab_size=tokenizer.vocab_size, action_dim=dataset.action_dim
    )
    stats = dataset_stats(dataset)
    preparation = Preparation(
        image_size=sizes.image_size,
        action_horizon=sizes.action_horizon,
        cameras=dataset.camera_keys,
        tokenizer=tokenizer,
        state_normalizer=Normalizer(recipe.data.normalization, stats[STATE]),
        action_normalizer=Normalizer(recipe.data.normalization, stats[ACTION]),
        max_text_tokens=recipe.data.max_text_tokens,
    )
    return Plan(recipe.model.name, sizes, preparation, None)


def _plan_from(files: PolicyFiles, recipe: Recipe, dataset: Dataset) -> Plan:
    """Start from a policy: its sizes, cameras and statistics win over the recipe's and the dataset's."""
    if files.model_name != recipe.model.name:
        raise InputError(f"model.init holds a {files.model_name!r} policy, the recipe asks for {recipe.model.name!r}")
    p = files.preparation
    p.check_fit("model.init", str(dataset.root), dataset.camera_keys, dataset.state_dim, dataset.action_dim)
    return Plan(files.model_name, files.sizes, p, files)


def open_stream(recipe: Recipe, dataset: Dataset, preparation: Preparation, world: World, start_step: int) -> Stream:
    """This process's share of every global batch from `start_step` on."""
    data = recipe.data
    return Stream(
        dataset,
        Order(
            dataset.lengths.tolist(), seed=recipe.run.seed, clip_frames=data.clip_frames, window_clips=data.window_clips
        ),
        preparation,
        batch_size=recipe.train.batch_size,
        rank=world.rank,
        world=world.size,
        start_step=start_step,
        decode_threads=data.decode_threads,
        prefetch_batches=data.prefetch_batches,
    )
