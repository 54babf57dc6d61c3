"""Every axis of the mesh, alone and with others, gives the losses and gradient norms of one process (law T1).

Five steps in fp32, micro-batches of various sizes and some of them empty, on real processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("layouts.py")
PI05, GROOT, MOE = "pi05", "gr00t", "moe"  # moe: π0.5 with mixtures of experts
INTERLEAVED = {"schedule": "interleaved", "stages_per_process": 2}
TWO = [
    (PI05, "dp_shard", {"dp_shard": 2}),
    (PI05, "tp", {"tp": 2}),
    (PI05, "pp", {"pp": 2}),
    (MOE, "ep", {"ep": 2}),
    (GROOT, "dp_replicate", {}),
    (GROOT, "cp", {"cp": 2}),
]
TWO_MORE = [
    (PI05, "dp_replicate", {}),
    (PI05, "cp", {"cp": 2}),
    (PI05, "interleaved", {"pp": 2, **INTERLEAVED}),
    ("pi0", "dp_shard", {"dp_shard": 2}),
    ("pi0", "tp", {"tp": 2}),
    ("pi0", "cp", {"cp": 2}),
    ("pi0", "pp", {"pp": 2}),
    (MOE, "tp", {"tp": 2}),
    (MOE, "pp", {"pp": 2}),
    (GROOT, "dp_shard", {"dp_shard": 2}),
    (GROOT, "tp", {"tp": 2}),
    (GROOT, "pp", {"pp": 2}),
    (GROOT, "ep", {"ep": 2}),
    ("smolvla", "dp_shard", {"dp_shard": 2}),
    ("smolvla", "pp", {"pp": 2}),
    *[("lora", axis, {axis: 2}) for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp")],
    *[("frozen", axis, {axis: 2}) for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")],
    (PI05, "dp_shard, layers recomputed", {"dp_shard": 2}, {"recompute": "layers"}),
    (MOE, "tp, layers recomputed", {"tp": 2}, {"recompute": "layers"}),
    (PI05, "pp, layers recomputed", {"pp": 2}, {"recompute": "layers"}),
    (PI05, "tp, some recomputed", {"tp": 2}, {"recompute": "selective"}),
    (GROOT, "dp_shard, some recomputed", {"dp_shard": 2}, {"recompute": "selective"}),
]
FOUR = [
    (model, name, degrees)
    for model in (PI05, GROOT)
    for name, degrees in (
        ("dp_replicate", {}),
        ("dp_shard", {"dp_shard": 4}),
        ("dp_replicate x dp_shard", {"dp_shard": 2}),
        ("tp", {"tp": 4}),
        ("cp", {"cp": 4}),
        ("pp", {"pp": 4}),
        ("tp x cp", {"tp": 2, "cp": 2}),
        ("pp x pp stages", {"pp": 2, **INTERLEAVED}),
    )
] + [(MOE, "ep", {"ep": 4}), (GROOT, "ep", {"ep": 4}), (MOE, "ep x cp", {"ep": 2, "cp": 2})]
EIGHT = [
    (model, name, degrees)
    for model in (PI05, GROOT)
    for name, degrees in (
        ("dp_shard x tp", {"dp_shard": 4, "tp": 2}),
        ("dp_replicate x dp_shard x tp", {"dp_replicate": 2, "dp_shard": 2, "tp": 2}),
        ("pp x dp", {"pp": 2}),
        ("pp x tp x dp_shard", {"pp": 2, "tp": 2, "dp_shard": 2}),
        ("cp x dp_shard", {"cp": 2, "dp_shard": 4}),
    )
] + [
    (model, name, degrees)
    for model in (MOE, GROOT)
    for name, degrees in (
        ("ep x dp", {"ep": 2}),
        ("ep x dp_shard", {"ep": 2, "dp_shard": 4}),
        ("tp x ep", {"tp": 2, "ep": 4}),
        ("pp x ep x cp", {"pp": 2, "ep": 2, "cp": 2}),
    )
]


def test_two_processes() -> None:
    check(2, TWO)


@pytest.mark.long
def test_two_processes_by_every_axis() -> None:
    check(2, TWO_MORE)


@pytest.mark.long
def test_four_processes() -> None:
    check(4, FOUR)


@pytest.mark.long
def test_eight_processes() -> None:
    check(8, EIGHT)


@pytest.mark.long
def test_compiled_parts() -> None:
    compiled = {"compile": True}
    layouts = [(model, axis, {axis: 2}, compiled) for model in (PI05, GROOT) for axis in ("dp_shard", "tp", "cp", "pp")]
    check(2, [*layouts, (MOE, "ep", {"ep": 2}, compiled)])


@pytest.mark.long
def test_bfloat16_stays_near() -> None:
    bf16 = {"dtype": "bf16", "lr": 1e-4}  # larger steps carry the rounding of one into the next
    layouts = [
        (model, axis, {axis: 2}, bf16) for model in (PI05, GROOT) for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp")
    ]
    layouts += [(model, "ep", {"ep": 2}, bf16) for model in (MOE, GROOT)]
    check(2, layouts, loss=1e-2, norm=5e-2)


def check(num_processes: int, layouts: list[Any], loss: float = 1e-5, norm: float = 1e-5) -> None:
    found = compare(num_processes, layouts)
    assert [(each["model"], each["name"]) for each in found] == [(model, name) for model, name, *_ in layouts]
    for each in found:
        assert len(each["alone"]) == 5
        for one, together in zip(each["alone"], each["together"], strict=True):
            assert together[0] == pytest.approx(one[0], rel=loss), (each["model"], each["name"])
            assert together[1] == pytest.approx(one[1], rel=norm), (each["model"], each["name"])


def compare(num_processes: int, layouts: list[Any]) -> list[dict[str, Any]]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes),
        str(SCRIPT), json.dumps(layouts),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100 + 40 * len(layouts), check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
