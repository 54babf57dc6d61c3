"""What a recipe and its datasets make together: how samples are prepared, how large the model is, its first weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlarge.contracts import ACTION, STATE, InputError, Sample, SampleId
from vlarge.data.config import DataConfig, MixturePart
from vlarge.data.hub import resolve
from vlarge.data.index import Dataset
from vlarge.data.pack import cost_in_tokens, pack
from vlarge.data.stats import FeatureStats, dataset_stats
from vlarge.data.tokens import Tokenizer, load_tokenizer
from vlarge.data.transforms import Chain, Normalizer, Preparation
from vlarge.data.transforms.configure import camera_slots, chain_for, prepared_stats
from vlarge.models.adapt import adapt
from vlarge.models.audit import Audit, audit
from vlarge.models.config import ModelConfig
from vlarge.models.network import PolicyNetwork
from vlarge.models.presets import Sizes, resized
from vlarge.models.registry import find_family
from vlarge.policy.files import PolicyFiles, build_model, read_policy
from vlarge.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """model, sizes: the network. init: a policy whose weights it starts from.

    preparations: one for each dataset of the run; embodiments: the name of the robot in each.
    """

    model: ModelConfig
    sizes: Sizes
    preparations: tuple[Preparation, ...]
    embodiments: tuple[str, ...]
    init: PolicyFiles | None

    @property
    def by_embodiment(self) -> dict[str, Preparation]:
        """What a policy needs to act on each robot: the preparation of its first dataset."""
        found: dict[str, Preparation] = {}
        for name, preparation in zip(self.embodiments, self.preparations, strict=True):
            found.setdefault(name, preparation)
        return found

    def build(self, seed: int, device: torch.device) -> PolicyNetwork[Any, Any]:
        """The network with its first weights, the same on every process."""
        torch.manual_seed(seed)
        if self.init is not None:
            model = self.init.build(device)
        else:
            model = build_model(self.sizes, device)
            model.embed_in_order(self.preparations[0].tokenizer.ordered_ids)
        model.attention = self.model.attention
        return _adapted(model, self.model)

    def audit(self, num_draws: int) -> Audit:
        """What of it is trained, on one sample of each dataset; nothing is computed. Raises InputError for nothing."""
        return audit_samples(self.model, self.sizes, [blank_sample(each) for each in self.preparations], num_draws)


def audit_samples(model: ModelConfig, sizes: Sizes, samples: Sequence[Sample], num_draws: int) -> Audit:
    """What of a network is trained on such samples; nothing is computed. Raises InputError for nothing."""
    flops = find_family(model.name).forward_flops(sizes, pack(samples), num_draws)
    found = audit(sized_network(model, sizes), pack(samples), flops, num_draws)
    if not any(found.trainable.values()):
        raise InputError(
            "nothing is left to train: leave a part out of model.freeze that the dataset has a use for, or set"
            " model.lora_rank"
        )
    return found


def sized_network(model: ModelConfig, sizes: Sizes) -> PolicyNetwork[Any, Any]:
    """The network as it is trained, on torch's meta device: sizes, and no weights."""
    return _adapted(build_model(sizes, torch.device("meta")), model)


def _adapted(network: PolicyNetwork[Any, Any], model: ModelConfig) -> PolicyNetwork[Any, Any]:
    adapt(network, model)
    return network.train()


@dataclass(frozen=True)
class _Part:
    """A dataset of the run. known: how a policy that the run starts from prepares it already."""

    config: MixturePart
    dataset: Dataset
    embodiment: str
    known: Preparation | None


def fit(recipe: Recipe, datasets: Sequence[Dataset]) -> Plan:
    """Fit the recipe to its datasets. Raises InputError where they do not go together.

    Of a policy that the run starts from, the sizes, the tokenizer and the prompt, and for each embodiment that it knows
    the cameras, stages and statistics win over the recipe's and the dataset's.
    """
    init = _initial_policy(recipe)
    parts = _parts(recipe.data, datasets, init)
    chains = [_chain(part, recipe.data.index_dir) for part in parts]
    first = init.first if init else None
    tokenizer = first.tokenizer if first else _tokenizer(recipe.data, init)
    dims = {"state_dim": _state_dim(parts, chains), "action_dim": _action_dim(parts, chains)}
    sizes = _sizes(recipe.model, init, tokenizer, dims)
    max_text_tokens = first.max_text_tokens if first else recipe.data.max_text_tokens
    places = _places(parts, chains)
    numbers = _embodiment_numbers(parts, sizes)
    stats = _stats(parts, chains, sizes.action_horizon, recipe.data.index_dir)

    def prepared(part: _Part, chain: Chain) -> Preparation:
        if part.known:
            return replace(part.known, action_horizon=sizes.action_horizon)
        own = stats[part.embodiment]
        return Preparation(
            image_size=sizes.image_size,
            action_horizon=sizes.action_horizon,
            cameras=tuple(sorted(part.dataset.camera_keys, key=lambda key: places[chain.camera(key)])),
            tokenizer=tokenizer,
            state_normalizer=Normalizer(recipe.data.normalization, own[STATE]),
            action_normalizer=Normalizer(recipe.data.normalization, own[ACTION]),
            max_text_tokens=max_text_tokens,
            chain=chain,
            prompt=first.prompt if first else sizes.prompt,
            embodiment=numbers[part.embodiment],
            padding=first.padding if first else sizes.PADDING,
            repeats_last_action=recipe.data.repeat_last_action,
        )

    preparations = tuple(prepared(part, chain) for part, chain in zip(parts, chains, strict=True))
    _check_marks(sizes, preparations)
    return Plan(
        recipe.model, sizes, preparations, tuple(part.embodiment for part in parts), init and replace(init, sizes=sizes)
    )


def blank_sample(p: Preparation, task: str = "") -> Sample:
    """A sample with all that a preparation gives one, and nothing in it."""
    state_A = np.zeros(p.state_normalizer.dim, np.float32)
    picture = np.zeros((p.image_size, p.image_size, 3), np.uint8)
    images = dict.fromkeys(p.cameras, picture)
    ids = p.prompt_ids(task, state_A[None], len(images))[0]
    actions_SA = np.zeros((p.action_horizon, p.action_normalizer.dim), np.float32)
    return Sample(SampleId(0, 0, 0), images, ids, state_A, actions_SA, p.embodiment)


def longest_sample(p: Preparation, dataset: Dataset) -> Sample:
    """Blank, with as many tokens as any of the dataset."""
    return blank_sample(p, max(dataset.tasks, key=p.most_text_tokens, default=""))


def longest(plan: Plan, datasets: Sequence[Dataset], num_draws: int) -> tuple[int, Sample]:
    """The longest sample of all datasets, after its number of tokens."""
    samples = map(longest_sample, plan.preparations, datasets)
    return max(((num_tokens(each, plan.sizes, num_draws), each) for each in samples), key=lambda found: found[0])


def num_tokens(sample: Sample, sizes: Sizes, num_draws: int) -> int:
    """Of a sample, as micro-batches count them."""
    return cost_in_tokens(
        len(sample.images), len(sample.prompt_ids), len(sample.actions_SA),
        image_tokens=sizes.image_tokens, draw_tokens=sizes.draw_tokens, num_draws=num_draws,
    )  # fmt: skip


def _sizes(model: ModelConfig, init: PolicyFiles | None, tokenizer: Tokenizer, dims: dict[str, int]) -> Sizes:
    sizes: Sizes
    if init is None:
        sizes = find_family(model.name).resolve(model, vocab_size=tokenizer.vocab_size, **dims)
    else:
        sizes = resized(init.sizes, model)
        sizes.check_dims(**dims)
    return sizes


def _check_marks(sizes: Sizes, preparations: Sequence[Preparation]) -> None:
    if not all(sizes.finds_images(blank_sample(each).prompt_ids, len(each.cameras)) for each in preparations):
        raise InputError(
            "the tokenizer has another mark for images than the model replaces by them: set data.tokenizer to the one"
            " that the model was made for"
        )


def embodiment_names(parts: Sequence[MixturePart]) -> list[str]:
    """The robot of each part: as the recipe calls it, or else its dataset's folder. Raises InputError for twins."""
    names = [part.embodiment or Path(part.path).name or Path(part.path).resolve().name for part in parts]
    unnamed = [name for part, name in zip(parts, names, strict=True) if not part.embodiment]
    twin = next((name for name in unnamed if names.count(name) > 1), None)
    if twin is not None:
        raise InputError(
            f"two datasets of data.mixture are called {twin!r}: give each its embodiment, the same name where the robot"
            " is the same and statistics are to be shared"
        )
    return names


def _initial_policy(recipe: Recipe) -> PolicyFiles | None:
    if not recipe.model.init:
        return None
    init = read_policy(resolve(recipe.model.init, repo_type="model"), recipe.model.name)
    if init.model_name != recipe.model.name:
        raise InputError(
            f"model.init holds a {init.model_name!r} policy, the recipe asks for {recipe.model.name!r}:"
            f" set model.name to {init.model_name}"
        )
    return init


def _tokenizer(data: DataConfig, init: PolicyFiles | None) -> Tokenizer:
    # The recipe's: there is no policy to start from, or it came without one.
    if init and data.tokenizer == "bytes":
        raise InputError(
            f"{init.folder} brings no tokenizer: set data.tokenizer to the tokenizer.json that it was trained with"
        )
    tokenizer = load_tokenizer(data.tokenizer)
    if init and tokenizer.vocab_size > init.sizes.vocab_size:
        raise InputError(f"the tokenizer has {tokenizer.vocab_size} tokens, model.init takes {init.sizes.vocab_size}")
    return tokenizer


def _parts(data: DataConfig, datasets: Sequence[Dataset], init: PolicyFiles | None) -> list[_Part]:
    configs = data.parts()
    parts = []
    for config, name, dataset in zip(configs, embodiment_names(configs), datasets, strict=True):
        known_name = _known_name(init.preparations, config, name) if init else None
        known = init.preparations[known_name] if init and known_name else None
        if known:
            known = _fitted(known, config, dataset, repeats_last_action=data.repeat_last_action)
        parts.append(_Part(config, dataset, known_name or name, known))
    return parts


def _known_name(preparations: Mapping[str, Preparation], config: MixturePart, name: str) -> str | None:
    # The policy's name of this embodiment; None for one that the recipe names and the policy has never seen.
    if name in preparations:
        return name
    if config.embodiment or not preparations:
        return None
    if len(preparations) > 1:
        raise InputError(
            f"model.init acts for {', '.join(preparations)}: set the embodiment of {config.path} to one of them, or to"
            " a new name"
        )
    return next(iter(preparations))


def _fitted(known: Preparation, config: MixturePart, dataset: Dataset, *, repeats_last_action: bool) -> Preparation:
    if config.camera_slots:
        known = known.look_through(camera_slots(config, dataset))
    known = replace(known, repeats_last_action=repeats_last_action)
    known.check_fit("model.init", dataset.root, dataset.camera_keys, dataset.state_dim, dataset.action_dim)
    return known


def _chain(part: _Part, index_dir: str) -> Chain:
    if part.known:
        return part.known.chain
    return chain_for(part.config, part.dataset, dataset_stats(part.dataset, index_dir)[ACTION].mean)


def _state_dim(parts: Sequence[_Part], chains: Sequence[Chain]) -> int:
    states = (chain.state(np.zeros(part.dataset.state_dim)) for part, chain in zip(parts, chains, strict=True))
    return max(map(len, states))


def _action_dim(parts: Sequence[_Part], chains: Sequence[Chain]) -> int:
    datasets = [part.dataset for part in parts]
    actions = (c.actions(np.zeros(d.action_dim), np.zeros(d.state_dim)) for c, d in zip(chains, datasets, strict=True))
    return max(map(len, actions))


def _places(parts: Sequence[_Part], chains: Sequence[Chain]) -> dict[str, int]:
    # The order in which the model sees its cameras: the same for all datasets, as the first ones have it.
    names = [chain.camera(key) for part, chain in zip(parts, chains, strict=True) for key in part.dataset.camera_keys]
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _embodiment_numbers(parts: Sequence[_Part], sizes: Sizes) -> dict[str, int]:
    # Robots that the policy knows keep theirs.
    numbers = {part.embodiment: part.known.embodiment for part in parts if part.known}
    for part in parts:
        if part.embodiment not in numbers:
            numbers[part.embodiment] = sizes.embodiment_number(part.embodiment, set(numbers.values()))
    return numbers


def _stats(
    parts: Sequence[_Part], chains: Sequence[Chain], horizon: int, index_dir: str
) -> dict[str, dict[str, FeatureStats]]:
    # Of each embodiment that is not known yet, over all of its datasets.
    found = {}
    for name in dict.fromkeys(part.embodiment for part in parts if not part.known):
        own = [k for k, part in enumerate(parts) if part.embodiment == name]
        found[name] = prepared_stats([parts[k].dataset for k in own], [chains[k] for k in own], horizon, index_dir)
    return found
