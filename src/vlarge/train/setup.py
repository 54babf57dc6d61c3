"""What a recipe and a dataset make together: how samples are prepared, how large the model is, its first weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.config import DataConfig, Source
from vlarge.data.hub import resolve
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.service.client import ServiceProcess, stream_from
from vlarge.data.service.feed import Feed
from vlarge.data.service.plan import Node
from vlarge.data.service.stream import Limits, Stream, stream_here
from vlarge.data.stats import dataset_stats
from vlarge.data.tokens import load_tokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.data.transforms.configure import camera_slots, chain_for, chain_stats
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
    stats = dataset_stats(dataset, recipe.data.index_dir)
    chain = chain_for(recipe.data, dataset, stats[ACTION].mean)
    sizes = find_family(recipe.model.name).resolve(
        recipe.model,
        vocab_size=tokenizer.vocab_size,
        action_dim=len(chain.actions(stats[ACTION].mean, stats[STATE].mean)),
    )
    if chain.stages:
        stats = chain_stats(dataset, chain, sizes.action_horizon)
    preparation = Preparation(
        image_size=sizes.image_size,
        action_horizon=sizes.action_horizon,
        cameras=dataset.camera_keys,
        tokenizer=tokenizer,
        state_normalizer=Normalizer(recipe.data.normalization, stats[STATE]),
        action_normalizer=Normalizer(recipe.data.normalization, stats[ACTION]),
        max_text_tokens=recipe.data.max_text_tokens,
        chain=chain,
    )
    return Plan(recipe.model.name, sizes, preparation, None)


def _plan_from(files: PolicyFiles, recipe: Recipe, dataset: Dataset) -> Plan:
    """Start from a policy: its sizes, cameras, stages and statistics win over the recipe's and the dataset's."""
    if files.model_name != recipe.model.name:
        raise InputError(f"model.init holds a {files.model_name!r} policy, the recipe asks for {recipe.model.name!r}")
    p = files.preparation
    if recipe.data.camera_slots:
        p = p.look_through(camera_slots(recipe.data, dataset))
    p.check_fit("model.init", str(dataset.root), dataset.camera_keys, dataset.state_dim, dataset.action_dim)
    return Plan(files.model_name, files.sizes, p, files)


def feed_of(recipe: Recipe, preparation: Preparation, world: World, start_step: int) -> Feed:
    """What this process's data service needs: one for the node, or one for the process alone."""
    data, size = recipe.data, preparation.image_size
    if data.cache not in ("none", "resized"):
        raise InputError(f"data.cache is {data.cache!r}; use 'none' or 'resized'")
    ranks = world.local_size if data.workers else 1
    return Feed(
        sources=(Source(**{item.name: getattr(data, item.name) for item in fields(Source)}),),
        preparations=(preparation.to_json(),),
        image_shape=(size, size),
        seed=recipe.run.seed,
        batch_size=recipe.train.batch_size,
        node=Node(world.rank // ranks, world.size // ranks, ranks),
        start_step=start_step,
        clip_frames=data.clip_frames,
        window_samples=data.window_samples,
        num_threads=1 if data.workers == 0 else max(0, data.workers),
        memory_bytes=data.memory_bytes,
        augment=data.augment,
        cache_dir=data.cache_dir if data.cache == "resized" else "",
        cache_bytes=data.cache_bytes,
        index_dir=data.index_dir,
        remote_cache_bytes=data.remote_cache_bytes,
        remote_deadline_s=data.remote_deadline_s,
    )


def open_stream(
    recipe: Recipe,
    dataset: Dataset,
    preparation: Preparation,
    world: World,
    start_step: int,
    tell: Callable[[str], None],
) -> Stream:
    """This process's share of every global batch from `start_step` on. `tell` gets what goes wrong on the way."""
    data = recipe.data
    feed = feed_of(recipe, preparation, world, start_step)
    limits = Limits(data.stall_s, data.max_bad_fraction)
    if data.workers == 0:
        return stream_here(feed, [dataset], limits, tell)
    process = ServiceProcess(feed) if world.local_rank == 0 else None
    address = world.of_this_node(process.address if process else "")
    return stream_from(address, world.local_rank, feed.image_shape, process, limits, tell)
