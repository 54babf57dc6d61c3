"""A network laid over the mesh: divided axis by axis, from outside, in the order that the axes need."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import register_fsdp_forward_method

from vlarge.models.compute import compile_regions, recompute_layers
from vlarge.models.division import Division, NumRows, Stack
from vlarge.models.moe import Experts
from vlarge.models.network import PolicyNetwork
from vlarge.train.config import TrainConfig
from vlarge.train.parallel.collectives import Line
from vlarge.train.parallel.data import replicate, shard
from vlarge.train.parallel.expert import TRAVELLERS, divide_experts
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.pipeline import Stage, keep_layers
from vlarge.train.parallel.sequence import divide_attention
from vlarge.train.parallel.tensor import Height, SpreadRows, divide_layer, divide_weights
from vlarge.train.step import DTYPES, precision

Network = PolicyNetwork[Any, Any]


@dataclass(frozen=True)
class Part:
    """A stage on this process. runner: what runs it, with its gradients summed over processes."""

    stage: Stage
    runner: nn.Module

    @property
    def network(self) -> Network:
        return self.stage.network


def spread(network: Network, division: Division, mesh: Mesh, c: TrainConfig, device: torch.device) -> list[Part]:
    """The stages of this process. The network is used up: all processes come with the same one, whole."""
    dtype = DTYPES[c.dtype]
    stages = own_stages(network, division, mesh, c, device)
    return [Part(stage, _share(stage, division, mesh, dtype)) for stage in stages]


def own_stages(
    network: Network, division: Division, mesh: Mesh, c: TrainConfig, device: torch.device
) -> Iterator[Stage]:
    """Those of this process, one after the other, not yet shared with the processes that have other samples."""
    pp, num_stages = mesh.coordinate("pp"), mesh.degrees.num_stages
    cuts = division.cut(num_stages)
    for number in range(pp, num_stages, mesh.size("pp")):
        own = network if num_stages == mesh.size("pp") else copy.deepcopy(network)
        keep_layers(own, division, cuts[number])
        _divide_weights(own, mesh)
        if c.compile:
            compile_regions(own)  # without what is exchanged around them
        _divide_rows(own, division, mesh)
        recompute_layers(own, c.recompute)
        yield Stage(own, cuts[number], number, num_stages, partial(precision, DTYPES[c.dtype], device))


def run_idle_parts(network: nn.Module) -> None:
    """Let all processes pass by every part of a network, whether or not their batches have a use for it."""
    module: Any
    for module in network.modules():
        if hasattr(module, "runs_idle_parts"):
            module.runs_idle_parts = True


def _divide_weights(network: Network, mesh: Mesh) -> None:
    if mesh.world.size > 1:
        run_idle_parts(network)
    axes = [axis for axis in ("ep", "tp") if mesh.size(axis) > 1]
    if axes and mesh.device_mesh is not None:
        divide_experts(network, mesh.device_mesh[tuple(axes)], _line(mesh, "ep"))
    if mesh.size("tp") > 1:
        divide_weights(network, mesh.along("tp"), is_first=mesh.coordinate("tp") == 0)


def _divide_rows(network: Network, division: Division, mesh: Mesh) -> None:
    context, tensor = _line(mesh, "cp"), _line(mesh, "tp")
    module: Any
    if context or tensor:
        rows = SpreadRows(context, tensor)
        for module in network.modules():
            if hasattr(module, "rows"):
                module.rows = rows
        for stack in division.stacks:
            _divide_stack(network, stack, rows)


def _line(mesh: Mesh, axis: str) -> Line | None:
    if mesh.size(axis) == 1:
        return None
    return Line(mesh.group(axis), mesh.coordinate(axis), mesh.size(axis), mesh.world.pulse)


def _divide_stack(network: Network, stack: Stack, rows: SpreadRows) -> None:
    height = Height()
    for layer in network.get_submodule(stack.name).children():
        divide_layer(layer, rows, height)
        if rows.context:
            divide_attention(layer, rows.context)
        for method, num_rows in stack.num_rows.items():
            setattr(layer, method, partial(_at_height, getattr(layer, method), height, num_rows))


def _at_height(forward: Callable[..., Any], height: Height, num_rows: NumRows, *args: Any, **more: Any) -> Any:
    height.num_rows = num_rows(*args, **more)
    return forward(*args, **more)


def _share(stage: Stage, division: Division, mesh: Mesh, dtype: torch.dtype) -> nn.Module:
    if mesh.degrees.dp_replicate == mesh.world.size > 1:
        return replicate(stage)
    if mesh.degrees.num_data * mesh.degrees.cp == 1:
        return stage
    whole = _data_mesh(mesh, "dp_shard", "ep", "cp")
    experts = _data_mesh(mesh, "dp_shard", "cp")
    units: list[tuple[nn.Module, DeviceMesh, torch.dtype]] = []
    if mesh.size("ep") > 1:
        for module in stage.network.modules():
            if isinstance(module, TRAVELLERS):  # what robots have of their own is multiplied in fp32 at its ends
                units.append((module, experts, dtype if isinstance(module, Experts) else torch.float32))
    layers = _layers(stage.network, division.stacks)
    shard(stage, [*units, *((layer, whole, dtype) for layer, _ in layers)], whole, mesh.world.pulse)
    for layer, stack in layers:
        for method in stack.num_rows.keys() - {"forward"}:
            register_fsdp_forward_method(layer, method)
    return stage


def _data_mesh(mesh: Mesh, *axes: str) -> DeviceMesh:
    row = mesh.along(*axes)
    if mesh.size("dp_replicate") == 1 or mesh.device_mesh is None:
        return row
    return DeviceMesh._concatenate([mesh.along("dp_replicate"), row])


def _layers(network: nn.Module, stacks: Sequence[Stack]) -> list[tuple[nn.Module, Stack]]:
    return [
        (layer, stack)
        for stack in stacks
        for layer in network.get_submodule(stack.name).children()
        if any(True for _ in layer.parameters())
    ]
