"""torch's engine: the network laid over the mesh, the gradients of a global batch, and optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.division import Division
from vlarge.models.network import PolicyNetwork
from vlarge.train.config import TrainConfig
from vlarge.train.ema import Ema
from vlarge.train.health.pulse import BACKWARD, EXCHANGE, OPTIMIZER
from vlarge.train.micro_batches import MicroBatches
from vlarge.train.optim import Optimizer
from vlarge.train.parallel.data import mark_wait, reducing
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.pipeline import run_pipeline
from vlarge.train.parallel.spread import spread
from vlarge.train.parallel.weights import finish_gradients, squared_norm
from vlarge.train.step import Draws


class Engine(MicroBatches):
    """What every process of a run calls alike, step by step; a `TrainingEngine`.

    network: whole, with the same weights on every process; it is used up. c: its dtype is stated, not "auto".
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
        self.parts = spread(network, division, mesh, c, device)
        self.networks = [part.network for part in self.parts]
        self.optimizer = Optimizer(self.networks, c)
        self.ema = Ema(self.networks, c.ema_decay)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """This process's, or its part of them."""
        return [parameter for network in self.networks for parameter in network.parameters()]

    def add_gradients(self, batches: Sequence[PackedBatch], step: int, num_valid: float, num_tokens: float) -> Tensor:
        """Of this process's micro-batches; its share of the loss. The numbers are those of the whole global batch."""
        self._weigh_balance(num_tokens)
        draws, scale = self._draws(batches, step), self._scale(num_valid)
        if self.mesh.size("pp") > 1:
            return self._through_pipeline(batches, draws, scale)
        loss = torch.zeros((), device=self.device)
        if self.mesh.world.size == 1:  # alone, nobody waits for what has nothing in it
            kept = [(batch, each) for batch, each in zip(batches, draws, strict=True) if batch.num_samples]
            batches, draws = [batch for batch, _ in kept], [each for _, each in kept]
        for number, (batch, each) in enumerate(zip(batches, draws, strict=True), 1):
            with reducing(self.parts[0].runner, now=number == len(batches)):
                loss += self._add_micro(batch, each, scale)
        return loss

    def update(self, lr: float, step: int) -> Tensor:
        """An optimizer step after all micro-batches. Returns the norm of the whole gradient; where it is not finite,
        the weights stay as they are.
        """
        with self.pulse.section(EXCHANGE if self.mesh.world.size > 1 else OPTIMIZER):
            norm = self.norm()
        self.optimizer.update(lr, self.config.clip_norm, norm)
        self.ema.update(step)
        return norm

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs of this process: the tensors themselves, which may be loaded into."""
        weights = {
            name: value.detach()
            for network in self.networks
            for name, value in (*network.named_parameters(), *network.named_buffers())
        }
        return {"model": weights, "optimizer": self.optimizer.state(), "ema": self.ema.state()}

    def adopt(self, state: dict[str, Any]) -> None:
        """Nothing is left to do: what was loaded into are the tensors themselves."""

    def norm(self) -> Tensor:
        """Of the whole gradient, once all micro-batches are done."""
        finish_gradients(self.parameters)
        norm = squared_norm(self.parameters)
        if self.mesh.size("pp") > 1:
            dist.all_reduce(norm, group=self.mesh.group("pp"))
        return norm.sqrt()

    def _add_micro(self, batch: PackedBatch, draws: Draws, scale: float) -> Tensor:
        part = self.parts[0]
        loss = self._forward(part.stage, part.runner, batch, draws, scale)
        with self.pulse.section(BACKWARD):
            mark_wait(part.runner, loss, self.pulse)
            loss.backward()
            return loss.detach_()  # what is left of the graph goes here

    def _through_pipeline(self, batches: Sequence[PackedBatch], draws: Sequence[Draws], scale: float) -> Tensor:
        def loss(velocity_SA: Tensor, micro: int) -> Tensor:
            return self._loss(velocity_SA, draws[micro], scale)

        for part in self.parts:
            part.stage.take([self._inputs(b, d, part.network) for b, d in zip(batches, draws, strict=True)])
        stages = [(part.stage, part.runner) for part in self.parts]
        return run_pipeline(stages, self.mesh.group("pp"), self.device, loss, self.pulse)
