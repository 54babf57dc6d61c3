"""What every engine does with the micro-batches of a step: noise, inputs, each one's share of the loss, balance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vlarge.contracts import PackedBatch
from vlarge.models.moe import MixtureOfExperts, mixtures
from vlarge.models.network import Inputs, PolicyNetwork
from vlarge.train.config import TrainConfig
from vlarge.train.health.pulse import EXCHANGE, FORWARD
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.pipeline import Stage
from vlarge.train.step import Draws, draw


class MicroBatches:
    """The part of an engine that does not depend on what reduces gradients and updates weights.

    network: whole. c: its dtype is stated, not "auto". networks: this process's, which the engine sets. shapes: of
    everything that the whole network's checkpoints hold.
    """

    networks: list[PolicyNetwork[Any, Any]]

    def __init__(
        self, network: PolicyNetwork[Any, Any], mesh: Mesh, c: TrainConfig, *, seed: int, device: torch.device
    ) -> None:
        self.mesh, self.config, self.seed, self.device = mesh, c, seed, device
        self.pulse = mesh.world.pulse
        self.flow, self.action_dim = network.flow, network.config.max_action_dim
        self.num_mixtures = len(mixtures(network))
        self.shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}  # of the whole

    @cached_property
    def mixtures(self) -> list[MixtureOfExperts]:
        """Those of this process's layers."""
        return [each for network in self.networks for each in mixtures(network) if each.share_E is not None]

    def settle_mixtures(self) -> None:
        """Tell every mixture of experts how all processes' tokens of this step were spread."""
        for mixture in self.mixtures:
            counts = mixture.balance.count_E.to(torch.float64).cpu()
            if self.mesh.stage is not None:
                with self.pulse.section(EXCHANGE):
                    dist.all_reduce(counts, group=self.mesh.stage)
            mixture.settle(counts.to(mixture.share_E))

    def _draws(self, batches: Sequence[PackedBatch], step: int) -> list[Draws]:
        c = self.config
        with self.pulse.section(FORWARD):
            return [
                draw(
                    batch, self.flow, seed=self.seed, step=step, num_draws=c.suffixes_per_prefix,
                    action_dim=self.action_dim, over_padding=c.loss_on_padding,
                )
                for batch in batches
            ]  # fmt: skip

    def _scale(self, num_valid: float) -> float:
        """Of a squared error in the loss."""
        return 1 / (num_valid * self.config.suffixes_per_prefix)

    def _weigh_balance(self, num_tokens: float) -> None:
        """num_tokens: of the whole global batch, those of one draw of each sample."""
        c = self.config
        for mixture in self.mixtures:
            mixture.balance_weight = c.balance_weight / (num_tokens * c.suffixes_per_prefix * self.num_mixtures)

    def _inputs(self, batch: PackedBatch, draws: Draws, network: PolicyNetwork[Any, Any]) -> Inputs[Any]:
        layout = network.lay_out(batch, self.config.suffixes_per_prefix)
        return Inputs(batch, draws.noised_SA.to(self.device), draws.time_D.to(self.device), layout)

    def _loss(self, velocity_SA: Tensor, draws: Draws, scale: float) -> Tensor:
        # Of this process's own rows: the others have theirs.
        return self.networks[-1].rows.own(draws.squared_errors(velocity_SA)).sum() * scale

    def _forward(self, stage: Stage, runner: nn.Module, batch: PackedBatch, draws: Draws, scale: float) -> Tensor:
        """The loss of a micro-batch. runner: what runs the stage, which is the whole network here."""
        with self.pulse.section(FORWARD):
            stage.take([self._inputs(batch, draws, stage.network)])
            (velocity_SA,) = runner(micro=torch.zeros((), dtype=torch.int64))
            return self._loss(velocity_SA, draws, scale)
