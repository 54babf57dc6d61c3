"""DeepSpeed's ZeRO in place of DDP, FSDP and our optimizer: the same losses, norms and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.division import Division
from vlarge.models.network import PolicyNetwork
from vlarge.train.config import TrainConfig
from vlarge.train.ema import weight_of_new
from vlarge.train.health.pulse import BACKWARD
from vlarge.train.micro_batches import MicroBatches
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.spread import own_stages, run_idle_parts
from vlarge.train.step import DTYPES, Draws, precision
from vlarge.train.zero.start import start
from vlarge.train.zero.state import ZeroState


class DeepSpeedEngine(MicroBatches):
    """What every process of a run calls alike, step by step; a `TrainingEngine`.

    network: whole, with the same weights on every process; it is used up. c: its dtype is stated, not "auto". A process
    group is open.
    """

    def __init__(
        self,
        network: PolicyNetwork[Any, Any],
        division: Division,
        mesh: Mesh,
        c: TrainConfig,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(network, mesh, c, seed=seed, device=device)
        zero_stage, row = mesh.degrees.zero_stage, mesh.along("dp_replicate") if mesh.device_mesh else None
        run_idle_parts(network)
        (self.stage,) = own_stages(network, division, mesh, c, device)
        if zero_stage == 3:  # weights in bfloat16 would stay whole
            self.stage.precision = partial(precision, DTYPES[c.dtype], device, keeps_weights=False)
        self.networks = [network]
        self.runner = start(self.stage, network, zero_stage, c, device)
        self._kept = ZeroState(network, self.runner, zero_stage, row)

    def add_gradients(self, batches: Sequence[PackedBatch], step: int, num_valid: float, num_tokens: float) -> Tensor:
        """Of this process's micro-batches; its share of the loss. The numbers are those of the whole global batch."""
        self._weigh_balance(num_tokens / self.mesh.world.size)  # as the loss below
        scale, loss = self._scale(num_valid), torch.zeros((), device=self.device)
        for number, (batch, draws) in enumerate(zip(batches, self._draws(batches, step), strict=True), 1):
            self.runner.set_gradient_accumulation_boundary(number == len(batches))
            loss += self._add_micro(batch, draws, scale)
        return loss

    def update(self, lr: float, step: int) -> Tensor:
        """An optimizer step after all micro-batches. Returns the norm of the whole gradient; where it is not finite,
        the weights stay as they are, and the norm is infinite.
        """
        self.runner.optimizer.set_lr(lr)
        self.runner.step()
        self._kept.average(weight_of_new(self.config.ema_decay, step))
        return torch.as_tensor(float(self.runner.get_global_grad_norm()))

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs of this process: its rows of everything, to be given back with `adopt`."""
        return self._kept.state()

    def adopt(self, state: dict[str, Any]) -> None:
        """Go on from a `state` that was loaded into."""
        self._kept.adopt(state)

    def _add_micro(self, batch: PackedBatch, draws: Draws, scale: float) -> Tensor:
        loss = self._forward(self.stage, self.runner, batch, draws, scale)
        with self.pulse.section(BACKWARD):
            # It takes the mean over processes of what is their share of a sum.
            self.runner.backward(loss * self.mesh.world.size, scale_wrt_gas=False)
        return loss.detach()
