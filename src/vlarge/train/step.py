"""One optimizer step's loss: the same numbers under any split of the global batch over processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.contracts import InputError, PackedBatch
from vlarge.models.flow import Flow, keyed_draws

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # of matrix products


def flow_loss(
    model: nn.Module,
    batch: PackedBatch,
    flow: Flow,
    *,
    seed: int,
    step: int,
    num_draws: int,
    action_dim: int,
    num_valid: float,
    over_padding: bool = False,
) -> Tensor:
    """Squared velocity errors of this process's samples, summed, over the *global* count of valid values (law M4).

    num_valid: action values of the whole global batch, before draws. action_dim: columns of the model's actions.
    over_padding: columns that a sample does not have count too, with targets of its noise alone.
    """
    times, noise = keyed_draws(seed, batch.sample_ids_B3, step, batch.num_actions_B, action_dim, num_draws, flow)
    if over_padding:
        batch = replace(batch, action_dims_B=np.full_like(batch.action_dims_B, action_dim))
    errors = velocity_errors(model, batch, flow, torch.from_numpy(times), torch.from_numpy(noise), num_draws)
    return errors.sum() / (num_valid * num_draws)


def velocity_errors(
    model: nn.Module, batch: PackedBatch, flow: Flow, time_D: Tensor, noise_SA: Tensor, num_draws: int
) -> Tensor:
    """Squared velocity errors [S * num_draws, A], zero beyond each sample's own action dimensions.

    time_D, noise_SA: sample-major, then draw, then step, on the CPU.
    """
    device = next(model.parameters()).device
    action_dim = noise_SA.shape[1]
    actions = torch.from_numpy(batch.actions_SA)
    actions = torch.nn.functional.pad(actions, (0, action_dim - actions.shape[1]))
    lengths_D = torch.from_numpy(batch.num_actions_B).repeat_interleave(num_draws)
    dims_D = torch.from_numpy(batch.action_dims_B).repeat_interleave(num_draws)
    actions = torch.cat([a.repeat(num_draws, 1) for a in actions.split(batch.num_actions_B.tolist())])
    noised, velocity = flow.interpolate(actions, noise_SA, time_D.repeat_interleave(lengths_D))
    predicted = model(batch, noised.to(device), time_D.to(device), num_draws)
    real = torch.arange(action_dim) < dims_D.repeat_interleave(lengths_D)[:, None]
    return (predicted - velocity.to(device)).square() * real.to(device)


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


def precision(dtype: str, device: torch.device) -> AbstractContextManager[None]:
    """Matrix products in bfloat16 over fp32 master weights, or everything in fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bf16")
