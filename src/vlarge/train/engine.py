"""The network of a run, laid over the mesh: the gradients of a global batch, and optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.division import Division
from vlarge.models.moe import MixtureOfExperts, mixtures
from vlarge.models.network import Inputs, PolicyNetwork
from vlarge.train.config import TrainConfig
from vlarge.train.ema import Ema
from vlarge.train.health.pulse import BACKWARD, EXCHANGE, FORWARD, Pulse
from vlarge.train.optim import Optimizer
from vlarge.train.parallel.data import mark_wait, reducing
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.pipeline import run_pipeline
from vlarge.train.parallel.spread import spread
from vlarge.train.parallel.weights import finish_gradients, squared_norm
from vlarge.train.step import Draws, draw


class Engine:
    """What every process of a run calls alike, step by step.

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
        self.mesh, self.config, self.seed, self.device = mesh, c, seed, device
        self.flow, self.action_dim = network.flow, network.config.max_action_dim
        self.num_mixtures = len(mixtures(network))
        self.shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}  # of the whole
        self.parts = spread(network, division, mesh, c, device)
        self.networks = [part.network for part in self.parts]
        self.optimizer = Optimizer(self.networks, c)
        self.ema = Ema(self.networks, c.ema_decay)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """This process's, or its part of them."""
        return [parameter for network in self.networks for parameter in network.parameters()]

    @property
    def mixtures(self) -> list[MixtureOfExperts]:
        """Those of this process's layers."""
        return [each for network in self.networks for each in mixtures(network) if each.share_E is not None]

    def add_gradients(
        self, batches: Sequence[PackedBatch], step: int, num_valid: float, num_tokens: float, pulse: Pulse
    ) -> Tensor:
        """Of this process's micro-batches; its share of the loss. The numbers are those of the whole global batch."""
        c = self.config
        for mixture in self.mixtures:
            mixture.balance_weight = c.balance_weight / (num_tokens * c.suffixes_per_prefix * self.num_mixtures)
        draws = [self._draw(batch, step) for batch in batches]
        scale = 1 / (num_valid * c.suffixes_per_prefix)
        if self.mesh.size("pp") > 1:
            return self._through_pipeline(batches, draws, scale, pulse)
        loss = torch.zeros((), device=self.device)
        if self.mesh.world.size == 1:  # alone, nobody waits for what has nothing in it
            kept = [(batch, each) for batch, each in zip(batches, draws, strict=True) if batch.num_samples]
            batches, draws = [batch for batch, _ in kept], [each for _, each in kept]
        for number, (batch, each) in enumerate(zip(batches, draws, strict=True), 1):
            with reducing(self.parts[0].runner, now=number == len(batches)):
                loss += self._add_micro(batch, each, scale, pulse)
        return loss

    def update(self, lr: float, step: int) -> Tensor:
        """An optimizer step after all micro-batches. Returns the norm of the whole gradient; where it is not finite,
        the weights stay as they are.
        """
        with self.mesh.world.pulse.section(EXCHANGE):
            norm = self._norm()
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

    def _norm(self) -> Tensor:
        finish_gradients(self.parameters)
        norm = squared_norm(self.parameters)
        if self.mesh.size("pp") > 1:
            dist.all_reduce(norm, group=self.mesh.group("pp"))
        return norm.sqrt()

    def settle_mixtures(self) -> None:
        """Tell every mixture of experts how all processes' tokens of this step were spread."""
        for mixture in self.mixtures:
            counts = mixture.balance.count_E.to(torch.float64).cpu()
            if self.mesh.stage is not None:
                with self.mesh.world.pulse.section(EXCHANGE):
                    dist.all_reduce(counts, group=self.mesh.stage)
            mixture.settle(counts.to(mixture.share_E))

    def _draw(self, batch: PackedBatch, step: int) -> Draws:
        c = self.config
        return draw(
            batch, self.flow, seed=self.seed, step=step, num_draws=c.suffixes_per_prefix, action_dim=self.action_dim,
            over_padding=c.loss_on_padding,
        )  # fmt: skip

    def _inputs(self, batch: PackedBatch, draws: Draws, network: PolicyNetwork[Any, Any]) -> Inputs[Any]:
        layout = network.lay_out(batch, self.config.suffixes_per_prefix)
        return Inputs(batch, draws.noised_SA.to(self.device), draws.time_D.to(self.device), layout)

    def _loss(self, velocity_SA: Tensor, draws: Draws, scale: float) -> Tensor:
        # Of this process's own rows: the others have theirs.
        return self.networks[-1].rows.own(draws.squared_errors(velocity_SA)).sum() * scale

    def _add_micro(self, batch: PackedBatch, draws: Draws, scale: float, pulse: Pulse) -> Tensor:
        part = self.parts[0]
        with pulse.section(FORWARD):
            part.stage.take([self._inputs(batch, draws, part.network)])
            (velocity_SA,) = part.runner(micro=torch.zeros(()))
            loss = self._loss(velocity_SA, draws, scale)
        with pulse.section(BACKWARD):
            mark_wait(part.runner, loss, pulse)
            loss.backward()
        return loss.detach()

    def _through_pipeline(
        self, batches: Sequence[PackedBatch], draws: Sequence[Draws], scale: float, pulse: Pulse
    ) -> Tensor:
        def loss(velocity_SA: Tensor, micro: int) -> Tensor:
            return self._loss(velocity_SA, draws[micro], scale)

        for part in self.parts:
            part.stage.take([self._inputs(b, d, part.network) for b, d in zip(batches, draws, strict=True)])
        stages = [(part.stage, part.runner) for part in self.parts]
        return run_pipeline(stages, self.mesh.group("pp"), self.device, loss, pulse)
