"""One optimizer step's loss: the same numbers under any split of the global batch over processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.contracts import InputError, PackedBatch
from vlarge.models.flow import Flow, keyed_draws

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # of matrix products


@dataclass(frozen=True)
class Draws:
    """What is asked of the network for one micro-batch: velocities of noised actions.

    noised_SA, target_SA: [S * num_draws, max_action_dim], sample-major, then draw, then step; time_D: of each draw.
    counts_SA: which values are in the loss. All on the CPU.
    """

    noised_SA: Tensor
    time_D: Tensor
    target_SA: Tensor
    counts_SA: Tensor

    def errors_of(self, model: nn.Module, batch: PackedBatch, num_draws: int) -> Tensor:
        """`squared_errors` of a whole model's velocities."""
        device = next(model.parameters()).device
        return self.squared_errors(model(batch, self.noised_SA.to(device), self.time_D.to(device), num_draws))

    def squared_errors(self, velocity_SA: Tensor) -> Tensor:
        """[S * num_draws, max_action_dim], zero where nothing counts."""
        device = velocity_SA.device
        return (velocity_SA - self.target_SA.to(device)).square() * self.counts_SA.to(device)


def draw(
    batch: PackedBatch,
    flow: Flow,
    *,
    seed: int,
    step: int,
    num_draws: int,
    action_dim: int,
    over_padding: bool = False,
) -> Draws:
    """Noise and times for each sample, from its id: the same on any process and in any micro-batch.

    action_dim: columns of the model's actions. over_padding: columns that a sample does not have count too, with
    targets of its noise alone.
    """
    times, noise = keyed_draws(seed, batch.sample_ids_B3, step, batch.num_actions_B, action_dim, num_draws, flow)
    dims_B = np.full_like(batch.action_dims_B, action_dim) if over_padding else batch.action_dims_B
    return draws_of(batch, dims_B, flow, torch.from_numpy(times), torch.from_numpy(noise), num_draws)


def draws_of(
    batch: PackedBatch, dims_B: np.ndarray, flow: Flow, time_D: Tensor, noise_SA: Tensor, num_draws: int
) -> Draws:
    """With given times and noise; dims_B: action columns of each sample that count."""
    action_dim = noise_SA.shape[1]
    actions = torch.from_numpy(batch.actions_SA)
    actions = torch.nn.functional.pad(actions, (0, action_dim - actions.shape[1]))
    lengths_D = torch.from_numpy(batch.num_actions_B).repeat_interleave(num_draws)
    dims_D = torch.from_numpy(dims_B).repeat_interleave(num_draws)
    chunks = actions.split(batch.num_actions_B.tolist())
    actions = torch.cat([chunk.repeat(num_draws, 1) for chunk in chunks]) if chunks else noise_SA
    noised, velocity = flow.interpolate(actions, noise_SA, time_D.repeat_interleave(lengths_D))
    counts = torch.arange(action_dim) < dims_D.repeat_interleave(lengths_D)[:, None]
    return Draws(noised, time_D, velocity, counts)


def compute_dtype(name: str, device: torch.device) -> str:
    """Resolve "auto": bf16 where the hardware multiplies it faster than fp32, fp32 elsewhere. Raises InputError."""
    if name not in ("auto", *DTYPES):
        raise InputError(f"train.dtype is {name!r}; use 'auto', 'bf16' or 'fp32'")
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if fast else "fp32"


def precision(dtype: torch.dtype, device: torch.device, *, keeps_weights: bool = True) -> AbstractContextManager[None]:
    """Matrix products in bfloat16 over fp32 master weights, or everything in fp32.

    keeps_weights: whether the weights in bfloat16 stay until the end of the block, for their next use.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=keeps_weights)
