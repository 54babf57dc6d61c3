"""The policy that LeRobot trains, evaluates and runs: its padded batches in, a packed model inside."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from lerobot_policy_vlarge.configuration_vlarge import VlargeConfig
from lerobot_policy_vlarge.packing import Batch, Packing
from lerobot_policy_vlarge.stored_tokenizer import STORED, StoredTokenizer
from vlarge.contracts import PackedBatch
from vlarge.data.hub import resolve
from vlarge.data.pack import pack
from vlarge.models.adapt import adapt, by_decay
from vlarge.models.flow import Flow
from vlarge.models.registry import find_family
from vlarge.policy.files import build_model, find_policy_folder
from vlarge.policy.weights import read_tensors
from vlarge.train.step import draws_of


class VlargePolicy(PreTrainedPolicy):
    """Any of vlarge's models. LeRobot's batches are packed on the way in: only what is real is computed."""

    config_class = VlargeConfig
    name = "vlarge"

    def __init__(self, config: VlargeConfig, **_of_dataset: Any) -> None:
        super().__init__(config)
        config.validate_features()
        self.config = config
        self.stored = StoredTokenizer(config.tokenizer)
        self.model, self.packing = _built(config, self.stored)
        if config.tokenizer != "bytes":
            config.tokenizer = STORED
        config.init = ""
        self.reset()

    def get_optim_params(self) -> list[dict[str, Any]]:
        """`by_decay` says on what weight decay falls."""
        decayed, others = by_decay(self.model)
        return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]

    def forward(self, batch: Batch, reduction: str = "mean") -> tuple[Tensor, dict[str, float]]:
        """The loss over all valid action values of the batch, in training on all processes.

        reduction: "none" gives that of each sample [B].
        """
        packed = pack(self.packing.demonstrated(batch, self.stored.tokenizer))
        num_draws, num_valid = self.config.suffixes_per_prefix, packed.num_valid_values
        time_D, noise_SA = drawn(packed, self.model.flow, self.model.config.max_action_dim, num_draws)
        draws = draws_of(packed, packed.action_dims_B, self.model.flow, time_D, noise_SA, num_draws)
        errors_SA = draws.errors_of(self.model, packed, num_draws)
        num_steps = packed.num_samples * self.config.chunk_size
        said = {"real_action_fraction": float(packed.num_actions_B.sum() / num_steps)}
        if reduction == "none":
            return by_sample(errors_SA, packed, num_draws), said
        count = mean_over_processes(num_valid, errors_SA.device) if self.training else num_valid
        return errors_SA.sum() / (count * num_draws), said

    @torch.no_grad()
    def predict_action_chunk(self, batch: Batch, noise: Tensor | None = None) -> Tensor:
        """Normalised actions [B, chunk_size, A]. noise: [B, chunk_size, the model's action dimensions]."""
        packed = pack(self.packing.observed(batch, self.stored.tokenizer))
        shape = (packed.num_samples, self.config.chunk_size, self.model.config.max_action_dim)
        noise_BSA = torch.randn(shape) if noise is None else noise
        order_B = torch.from_numpy(packed.sample_ids_B3[:, 2])
        sampled_SA = self.model.sample(packed, noise_BSA[order_B].flatten(0, 1).to(next(self.parameters()).device))
        chunks_BSA = sampled_SA.unflatten(0, shape[:2])[order_B.argsort()]
        return chunks_BSA[..., : self.packing.action_dim]

    def select_action(self, batch: Batch, noise: Tensor | None = None) -> Tensor:
        """The next normalised action [B, A] of the chunk under way, or of a new one when that is used up."""
        if not self._waiting:
            chunks_BSA = self.predict_action_chunk(batch, noise)
            self._waiting.extend(chunks_BSA[:, : self.config.n_action_steps].unbind(1))
        return self._waiting.popleft()

    def reset(self) -> None:
        """Forget the chunk under way."""
        self._waiting: deque[Tensor] = deque()


def _built(config: VlargeConfig, stored: StoredTokenizer) -> tuple[Any, Packing]:
    """The network with its first weights, and how batches are packed for it. Raises InputError for a misfit."""
    family, c = find_family(config.model), config.model_config
    state_dim, action_dim = config.robot_state_feature.shape[0], config.action_feature.shape[0]
    sizes = family.resolve(c, vocab_size=stored.vocab_size, state_dim=state_dim, action_dim=action_dim)
    model: Any = build_model(sizes, torch.device(config.device))
    if config.init:
        theirs = read_tensors(find_policy_folder(resolve(config.init, repo_type="model")))
        model.load_state_dict(family.from_lerobot(theirs, model.state_dict(), sizes))
    elif config.tokenizer != STORED:
        model.embed_in_order(stored.tokenizer.ordered_ids)
    adapt(model, c)
    packing = Packing(
        cameras=tuple(config.image_features),
        image_size=sizes.image_size,
        action_horizon=config.chunk_size,
        action_dim=action_dim,
        prompt=sizes.prompt,
        max_text_tokens=config.max_text_tokens,
        embodiment=sizes.embodiment_number(config.embodiment, ()),
        padding=sizes.PADDING,
    )
    return model, packing


def drawn(packed: PackedBatch, flow: Flow, action_dim: int, num_draws: int) -> tuple[Tensor, Tensor]:
    """Flow times [B * draws] and noise [S * draws, A] in float32, from torch's generator, which LeRobot seeds."""
    uniform = torch.rand(packed.num_samples * num_draws, dtype=torch.float64)
    noise_SA = torch.randn(int(packed.num_actions_B.sum()) * num_draws, action_dim)
    return torch.from_numpy(flow.times(uniform.numpy())).float(), noise_SA


def by_sample(errors_SA: Tensor, packed: PackedBatch, num_draws: int) -> Tensor:
    """Mean squared error [B] of each sample, in the order of LeRobot's batch."""
    lengths_B = torch.from_numpy(packed.num_actions_B) * num_draws
    counts_B = (lengths_B * torch.from_numpy(packed.action_dims_B)).to(errors_SA.device)
    sums_B = torch.stack([own.sum() for own in errors_SA.split(lengths_B.tolist())])
    return (sums_B / counts_B)[torch.from_numpy(packed.sample_ids_B3[:, 2]).argsort()]


def mean_over_processes(count: int, device: torch.device) -> Tensor:
    """Processes average their gradients: a sum over this count is then one over the global count (law M4)."""
    total = torch.tensor(float(count), device=device)
    if not dist.is_available() or not dist.is_initialized():
        return total
    dist.all_reduce(total)
    return total / dist.get_world_size()
