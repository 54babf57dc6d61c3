"""DeepSpeed's ZeRO gives the losses, norms and checkpoints of one process (laws T1 to T3). It is installed by its extra."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vlarge.contracts import InputError
from vlarge.recipe import Recipe, replace
from vlarge.train import engines
from vlarge.train.checkpoint import Reader
from vlarge.train.config import ParallelConfig

CLOSE = {"rtol": 1e-3, "atol": 5e-5}  # a twentieth of one update: Adam makes much of gradients that are all but zero
SCRIPT = str(Path(__file__).with_name("divided.py"))
COMMAND, DIVIDED = ["-m", "vlarge"], [SCRIPT]  # which divides small weights too
FROZEN = ["--model.freeze", '["vision"]', "--model.num_experts", "4"]
needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install -e '.[deepspeed]'"
)


def zero(stage: int) -> dict[str, Any]:
    return {"engine": "deepspeed", "zero_stage": stage}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "megatron"}, "parallel.engine is 'megatron'; use 'torch' or 'deepspeed'"),
        ({"engine": "deepspeed"}, "parallel.zero_stage is 0: set it to 1, 2 or 3"),
        (zero(4), "parallel.zero_stage is 4: set it to 1, 2 or 3"),
        ({"zero_stage": 2}, "parallel.zero_stage is 2, and is DeepSpeed's"),
        ({**zero(1), "tp": 2}, "parallel.tp is 2, an axis that"),
        ({**zero(1), "pp": 2}, "parallel.pp is 2"),
        ({**zero(1), "cp": 2}, "parallel.cp is 2"),
        ({**zero(1), "ep": 2}, "parallel.ep is 2"),
        ({**zero(3), "dp_shard": 2}, "parallel.dp_shard is 2"),
        ({**zero(3), "dp_shard": 0}, "parallel.dp_shard is 0"),
    ],
)
def test_settings_that_do_not_go_together_are_told(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ParallelConfig(**settings).check()


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(replace(Recipe(), "parallel.engine", "deepspeed"), "parallel.zero_stage", 3)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'vlarge\[deepspeed\]'"):
        engines.require_engine(recipe)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    with pytest.raises(InputError, match="torchrun"):
        engines.require_engine(recipe)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    engines.require_engine(recipe)
    with pytest.raises(InputError, match=r"train\.compile does not go with"):
        engines.require_engine(replace(recipe, "train.compile", True))
    with pytest.raises(InputError, match="keeps the gradients of what is tried"):
        engines.require_engine(replace(recipe, "train.micro_batch_tokens", "auto"))


@needs_deepspeed
@pytest.mark.long
def test_two_processes_equal_one() -> None:
    """Every stage and model, micro-batches of various sizes, layers recomputed, and a step that is not finite."""
    layouts = [(model, f"stage {n}", zero(n)) for model in ("pi05", "moe", "gr00t") for n in (1, 2, 3)]
    layouts += [(model, "stage 3", zero(3)) for model in ("pi0", "smolvla")]
    again = [(model, "stage 3", zero(3), {"recompute": "layers"}) for model in ("pi05", "moe")]
    check(2, [*layouts, *again])


@needs_deepspeed
@pytest.mark.long
def test_four_processes_equal_one() -> None:
    check(4, [(model, f"stage {n}", zero(n)) for model in ("pi05", "gr00t") for n in (1, 2, 3)])


@needs_deepspeed
@pytest.mark.long
@pytest.mark.parametrize(("stage", "command"), [(1, COMMAND), (3, COMMAND), (3, DIVIDED)])
def test_a_run_goes_on_on_other_processes_and_with_the_other_engine(
    stage: int, command: list[str], tmp_path: Path, settings: Path, faulty_data: Path
) -> None:
    """DeepSpeed on two processes, on four, torch on two, DeepSpeed on one: beside one process all the way."""
    options = [str(settings), "--data.path", str(faulty_data), *FROZEN]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ours = ["--parallel.engine", "deepspeed", "--parallel.zero_stage", str(stage)]
    train(0, [*command, "train", *options, "--run.dir", str(whole), "--train.steps", "8"], tmp_path)
    for steps, (number, engine) in enumerate([(2, ours), (4, ours), (2, []), (1, ours)], 1):
        resume = ["--resume"] if steps > 1 else []
        more = ["--run.dir", str(parts), "--train.steps", str(2 * steps), *engine, *resume]
        said = train(number, [*command, "train", *options, *more], tmp_path)
    assert said == f"finished: {parts}/checkpoints/00000008\n"
    for one, other in zip(lines(whole), lines(parts), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    assert_alike(whole / "checkpoints/last", parts / "checkpoints/last")


@needs_deepspeed
@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_checkpoint_holds_everything_and_nothing_is_written_elsewhere(
    stage: int, tmp_path: Path, settings: Path, faulty_data: Path
) -> None:
    """Frozen weights are in it as they were, adapters are added in, averages follow as in one process."""
    adapted = ["--model.freeze", '["vision", "language"]', "--model.lora_rank", "2", "--train.steps", "3"]
    options = [*DIVIDED, "train", str(settings), "--data.path", str(faulty_data), *adapted]
    ours = ["--parallel.engine", "deepspeed", "--parallel.zero_stage", str(stage)]
    train(0, [*options, "--run.dir", str(tmp_path / "one")], tmp_path)
    before = files(tmp_path / "home")
    said = train(2, [*options, "--run.dir", str(tmp_path / "two"), *ours], tmp_path)
    assert said == f"finished: {tmp_path}/two/checkpoints/00000003\n"
    assert files(tmp_path / "home") == before
    assert_alike(tmp_path / "one/checkpoints/last", tmp_path / "two/checkpoints/last")


def check(num_processes: int, layouts: list[Any], spoilt: int = 3) -> None:
    command = [SCRIPT, "layouts", str(spoilt), json.dumps(layouts)]
    done = subprocess.run(
        [*torchrun(num_processes), *command], capture_output=True, text=True, timeout=200 + 40 * len(layouts), check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    assert all(line.startswith("{") for line in done.stdout.splitlines())  # it prints nothing of its own
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["model"], each["name"]) for each in found] == [(model, name) for model, name, *_ in layouts]
    for each in found:
        for step, (one, together) in enumerate(zip(each["alone"], each["together"], strict=True)):
            if step == spoilt:
                assert not any(math.isfinite(norm) for _, norm in (one, together))
            else:
                assert together == pytest.approx(one, rel=1e-5), (each["model"], each["name"], step)


def torchrun(num_processes: int) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    return start if num_processes else [sys.executable]


def train(num_processes: int, command: list[str], folder: Path) -> str:
    """A command line on so many processes, 0: without torchrun; what it says."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [*torchrun(num_processes), *command], capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def assert_alike(one: Path, other: Path) -> None:
    """Two checkpoints of one step: what resumes, and what is published."""
    reads = [Reader(folder / "training_state") for folder in (one, other)]
    assert reads[0].names == reads[1].names
    for name in reads[0].names:
        values = [read(name) for read in reads]
        if isinstance(values[0], torch.Tensor):
            torch.testing.assert_close(values[1], values[0], **CLOSE, msg=name)
        elif name != "position.steps":
            assert values[0] == values[1], name
    weights = [load_file(folder / "pretrained_model/model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, **CLOSE, msg=name)
