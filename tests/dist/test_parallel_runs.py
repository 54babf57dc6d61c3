"""Whole runs over the mesh, by the real command: the losses of one process, and resuming in any layout (T1, T2)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import lines
from safetensors.torch import load_file

STEPS = 6
GROOT = {"model.name": "gr00t"}
MOE = {"model.num_experts": 4}


def train(
    run: Path, settings: Path, num: int, *options: str, steps: int = STEPS, **more: Any
) -> subprocess.CompletedProcess[str]:
    """With every layout's own parallel settings, e.g. `tp=2`."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num)] if num > 1 else []
    axes = [part for axis, degree in more.items() for part in (f"--parallel.{axis}", str(degree))]
    command = [sys.executable, *launch, "-m", "vlarge", "train", str(settings), "--run.dir", str(run)]
    command += ["--train.steps", str(steps), "--train.save_every", "3", "--train.batch_size", "7", *axes, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def trained(
    run: Path, settings: Path, num: int, *options: str, steps: int = STEPS, **more: Any
) -> list[dict[str, Any]]:
    done = train(run, settings, num, *options, steps=steps, **more)
    assert done.returncode == 0, done.stderr[-6000:]
    return lines(run / "steps.jsonl")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def given(settings: dict[str, Any]) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


def same_losses(found: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    assert [step["step"] for step in found] == [step["step"] for step in alone] == [*range(1, STEPS + 1)]
    for one, other in zip(alone, found, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)


def check(
    tmp_path: Path, settings: Path, data: Path, model: dict[str, Any], *layouts: tuple[int, dict[str, Any]]
) -> None:
    """A run that goes through the layouts, three steps in each of two, equals that of one process."""
    options = ["--data.path", str(data), *given(model)]
    alone = trained(tmp_path / "alone", settings, 1, *options)
    run = tmp_path / "run"
    (first, axes), (second, other_axes) = layouts
    trained(run, settings, first, *options, steps=3, **axes)
    found = trained(run, settings, second, *options, "--resume", **other_axes)
    same_losses(found, alone)
    expected, published = weights(tmp_path / "alone"), weights(run)
    assert published.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(published[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_run_begins_in_one_layout_and_goes_on_in_another(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    check(tmp_path, settings, faulty_data, {}, (2, {"dp_shard": 2}), (2, {"tp": 2}))


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "first", "second"),
    [
        ({}, (4, {"dp_shard": 4}), (2, {"dp_shard": 2})),
        ({}, (2, {}), (4, {"dp_shard": 2, "tp": 2})),
        ({}, (4, {"pp": 2, "tp": 2}), (3, {"dp_shard": 3})),
        (GROOT, (4, {"cp": 2, "dp_shard": 2}), (2, {"pp": 2})),
        (GROOT, (2, {"ep": 2}), (4, {"ep": 2, "tp": 2})),
        (MOE, (4, {"ep": 2, "dp_replicate": 2}), (1, {})),
    ],
)
def test_any_layout_resumes_in_any_other(
    tmp_path: Path, settings: Path, faulty_data: Path, model: dict[str, Any], first: Any, second: Any
) -> None:
    check(tmp_path, settings, faulty_data, model, first, second)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "num", "axes"),
    [({}, 2, {"dp_shard": 2}), (GROOT, 4, {"pp": 2, "dp_shard": 2}), (MOE, 4, {"ep": 2, "tp": 2})],
)
def test_the_same_layout_resumes_bit_for_bit_even_twice(
    tmp_path: Path, settings: Path, faulty_data: Path, model: dict[str, Any], num: int, axes: dict[str, Any]
) -> None:
    options = ["--data.path", str(faulty_data), *given(model), "--train.save_every", "2"]
    whole = trained(tmp_path / "whole", settings, num, *options, **axes)
    run = tmp_path / "parts"
    trained(run, settings, num, *options, steps=2, **axes)
    trained(run, settings, num, *options, "--resume", steps=4, **axes)
    parts = trained(run, settings, num, *options, "--resume", **axes)
    assert [(s["loss"], s["grad_norm"]) for s in parts] == [(s["loss"], s["grad_norm"]) for s in whole]
    expected, published = weights(tmp_path / "whole"), weights(run)
    assert all(torch.equal(published[name], value) for name, value in expected.items())
