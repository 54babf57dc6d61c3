"""One process's optimizer step in the real plan, imagined: what it holds, and what it says to others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from vlarge.contracts import PackedBatch
from vlarge.models.division import Division
from vlarge.models.network import PolicyNetwork
from vlarge.train.config import ParallelConfig, TrainConfig
from vlarge.train.dry_run.imagined import Imagined, imagined_world, run_as_on_gpu
from vlarge.train.dry_run.memory import Memory, Peak
from vlarge.train.dry_run.traffic import Row, Traffic, num_bytes
from vlarge.train.engine import Engine
from vlarge.train.parallel.deliver import deliver
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.weights import local

CPU = torch.device("cpu")
DDP_STEPS = 2  # that DDP takes to know its buckets


@dataclass(frozen=True)
class Bytes:
    """What a process holds. parameters to ema: its part of each, all the time; gradients: once all are there.

    activations: what forward passes keep and passes in progress work with; in_flight: weights gathered by FSDP and
    their gradients before they are scattered. Both at the moment when most of them are in use.
    """

    parameters: int
    gradients: int
    optimizer: int
    ema: int
    activations: int
    in_flight: int

    @property
    def total(self) -> int:
        """At most."""
        return sum(getattr(self, item.name) for item in fields(self))


@dataclass(frozen=True)
class Global:
    """Of the whole global batch: action values that count, and action steps."""

    num_valid: int
    num_tokens: int


@dataclass(frozen=True)
class Rehearsal:
    """Of one process. traffic: of one optimizer step."""

    held: Bytes
    traffic: tuple[Row, ...]


def rehearse(
    network: PolicyNetwork[Any, Any],
    division: Division,
    degrees: ParallelConfig,
    c: TrainConfig,
    rank: int,
    batches: Sequence[PackedBatch],
    whole: Global,
) -> Rehearsal:
    """network: on torch's meta device, whole; it is used up. batches: this process's share."""
    imagined = Imagined()
    with imagined_world(rank, degrees.num_processes) as world:
        mesh = Mesh(degrees, world, CPU.type)
        engine = _engine(network, division, mesh, c, imagined)
        if _is_copied(mesh):
            for step in range(DDP_STEPS):
                with imagined:
                    imagine_step(engine, batches, step, whole)
                    _clear(engine)
        traffic, memory = Traffic(degrees), Memory()
        with imagined, traffic, memory:
            imagine_step(engine, batches, DDP_STEPS, whole)
        with traffic:
            talk_beside(engine, mesh, batches)
        with imagined:
            return Rehearsal(_held(engine, memory), traffic.rows())


def _engine(
    network: PolicyNetwork[Any, Any], division: Division, mesh: Mesh, c: TrainConfig, imagined: Imagined
) -> Engine:
    if _is_copied(mesh):
        imagined.bring(network)
        with imagined:
            engine = Engine(network, division, mesh, c, seed=0, device=CPU)
    else:  # brought later, because FSDP cuts every parameter into as many pieces as there are processes
        engine = Engine(network, division, mesh, c, seed=0, device=CPU)
        for part in engine.parts:
            imagined.bring(part.stage)
    for each in engine.networks:
        run_as_on_gpu(each)
    return engine


def _is_copied(mesh: Mesh) -> bool:
    # By DDP.
    return mesh.degrees.dp_replicate == mesh.world.size > 1


def imagine_step(engine: Engine, batches: Sequence[PackedBatch], step: int, whole: Global) -> None:
    """Forward and backward passes, and the gradient's norm."""
    engine.add_gradients(batches, step, whole.num_valid, whole.num_tokens)
    engine.norm()


def talk_beside(engine: Engine, mesh: Mesh, batches: Sequence[PackedBatch]) -> None:
    """What the trainer's processes say to each other beside it: their shares, sums, how experts were used."""
    if mesh.sharers is not None:
        deliver(batches, mesh.sharers)
    mesh.world.sum(0.0, 0.0, 0.0, 0.0, 0.0)
    for mixture in engine.mixtures:
        mixture.forget()  # counts that can be read
    engine.settle_mixtures()
    mesh.world.sum(0.0)


def _clear(engine: Engine) -> None:
    for parameter in engine.parameters:
        parameter.grad = None


def _held(engine: Engine, memory: Memory) -> Bytes:
    gradients = [local(p.grad) for p in engine.parameters if p.grad is not None]
    peak: Peak = memory.peak(gradients)
    buffers = [buffer for network in engine.networks for buffer in network.buffers()]
    return Bytes(
        parameters=_local_bytes([*engine.parameters, *buffers]),
        gradients=num_bytes(gradients),
        optimizer=_local_bytes(tree_leaves(engine.optimizer.state())),
        ema=_local_bytes(engine.ema.state().values()),
        activations=peak.kept,
        in_flight=peak.in_flight,
    )


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    return num_bytes([local(tensor) for tensor in tensors])
