"""What ZeRO has divided, as checkpoints know it: by parameter, and by rows like FSDP's.

DeepSpeed cuts weights and optimizer state where no row ends. For a checkpoint each parameter in turn is gathered, and
every process keeps its rows. That takes one pass of four times the weights (weight, two moments, average) over the
network, while training waits, the memory of one parameter, and a copy of this process's part of it all until the
checkpoint is staged. In return torch's engine and any number of processes can go on from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from vlarge.train.optim import MOMENTS
from vlarge.train.parallel.weights import as_part_of, local

AVERAGE = "average"  # kept beside the moments, so that it is divided as they are


class ZeroState:
    """The weights, moments and averages of a network that DeepSpeed trains.

    runner: its engine, started with AdamW. mesh: all processes in a row; None for one alone.
    """

    def __init__(self, network: nn.Module, runner: Any, zero_stage: int, mesh: DeviceMesh | None) -> None:
        self._network, self._optimizer, self._mesh = network, runner.optimizer, mesh
        self._whole_weights = zero_stage < 3
        self._trained = {name: each for name, each in network.named_parameters() if each.requires_grad}
        self._begin()

    @property
    def _flats(self) -> list[Tensor]:
        """Of each group of parameters what this process has, in fp32: all that AdamW knows of."""
        if self._whole_weights:
            return self._optimizer.single_partition_of_fp32_groups
        return self._optimizer.fp32_partitioned_groups_flat

    def _of(self, flat: Tensor) -> dict[str, Tensor]:
        return self._optimizer.optimizer.state[flat]

    def _begin(self) -> None:
        # AdamW makes its state with the first update; a checkpoint may come, or be loaded, before.
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        for flat in self._flats:
            own = self._of(flat)
            own["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            own |= {moment: torch.zeros_like(flat, requires_grad=False) for moment in MOMENTS}
            own[AVERAGE] = flat.detach().clone()
        if self._whole_weights:  # each parameter knows where its values are
            for group, flat in zip(self._optimizer.bit16_groups, self._flats, strict=True):
                lazy_init_hp_params_optimizer_state(group, flat, self._optimizer.optimizer.state)

    @torch.no_grad()
    def average(self, weight: float) -> None:
        """Move the averages towards the weights."""
        torch._foreach_lerp_([self._of(flat)[AVERAGE] for flat in self._flats], self._flats, weight)

    @torch.no_grad()
    def state(self) -> dict[str, Any]:
        """Everything by parameter, as torch's engine has it; to be given back with `adopt`. A collective."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        state: dict[str, Any] = {"model": dict(self._network.named_buffers()), "optimizer": {}, "ema": {}}
        for name, parameter in self._network.named_parameters():
            if name not in self._trained:
                state["model"][name] = self._frozen(parameter)
                continue
            kept = {
                key: self._rows(safe_get_full_optimizer_state(parameter, key).detach()) for key in (*MOMENTS, AVERAGE)
            }
            state["model"][name] = self._rows(safe_get_full_fp32_param(parameter).detach())
            state["ema"][name] = kept.pop(AVERAGE)
            state["optimizer"][name] = {"step": self._of(self._flats[0])["step"].clone(), **kept}
        return state

    @torch.no_grad()
    def adopt(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` that was loaded into. A collective.

        All parameters are of one optimizer step from here on: the highest, where one process has trained without those
        that a batch had no use for.
        """
        for name, parameter in self._network.named_parameters():
            if name in self._trained:
                kept = {moment: state["optimizer"][name][moment] for moment in MOMENTS}
                kept[AVERAGE] = state["ema"][name]
                self._set(parameter, state["model"][name], kept)
            elif not self._whole_weights:
                with self._gathered(parameter, changed=True):
                    parameter.copy_(_whole(state["model"][name]))
        step = max(float(each["step"]) for each in state["optimizer"].values())
        for flat in self._flats:
            self._of(flat)["step"].fill_(step)
        self._use()

    def _frozen(self, parameter: nn.Parameter) -> Tensor:
        if self._whole_weights:
            return parameter.detach()
        with self._gathered(parameter):
            return self._rows(parameter.detach())

    def _gathered(self, parameter: nn.Parameter, *, changed: bool = False) -> AbstractContextManager[None]:
        import deepspeed

        return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0 if changed else None)

    def _rows(self, whole: Tensor) -> Tensor:
        """This process's rows, in memory of their own; a number is everybody's."""
        if self._mesh is None or not whole.ndim:
            return whole.clone()
        part = distribute_tensor(whole, self._mesh, [Shard(0)], src_data_rank=None)
        return as_part_of(local(part).clone(), part)

    def _set(self, parameter: nn.Parameter, weight: Tensor, kept: Mapping[str, Tensor]) -> None:
        """The fp32 weight of a trained parameter, and what AdamW's state has of it."""
        from deepspeed import utils

        if self._whole_weights:
            utils.safe_set_full_fp32_param(parameter, _whole(weight))
            for key, value in kept.items():
                utils.safe_set_full_optimizer_state(parameter, _whole(value), key)
        else:
            utils.safe_set_local_fp32_param(parameter, self._cut(weight, parameter))
            for key, value in kept.items():
                utils.safe_set_local_optimizer_state(parameter, self._cut(value, parameter), key)

    def _cut(self, value: Tensor, parameter: Any) -> Tensor:
        """What stage 3 keeps here of a value like the parameter: a stretch, filled up at the end."""
        num, rank = parameter.ds_tensor.numel(), self._mesh.get_local_rank() if self._mesh is not None else 0
        own = _whole(value).flatten()[num * rank : num * (rank + 1)]
        return torch.nn.functional.pad(own, (0, num - len(own)))

    def _use(self) -> None:
        """Compute with the fp32 weights that were set."""
        if self._whole_weights:
            self._optimizer.update_lp_params()
            return
        for used, flat in zip(self._optimizer.fp16_partitioned_groups_flat, self._flats, strict=True):
            used.data.copy_(flat.data)
        for parameter in self._optimizer.persistent_parameters:
            parameter.partition([parameter])
            parameter.all_gather([parameter])


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
