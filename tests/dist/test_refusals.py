"""What cannot work is said on every process alike, and nobody waits for anybody: by the real command, long before a
collective would give up."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 60.0  # to start Python and torch on a busy machine; a collective waits ten minutes


def refused(settings: Path, data: Path, run: Path, *options: str, num: int = 2) -> tuple[str, float]:
    """What the processes say, and after how many seconds."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num), "-m", "vlarge", "train"]
    command = [sys.executable, *launch, str(settings), "--data.path", str(data), "--run.dir", str(run), *options]
    start_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr.partition("torch/distributed")[0]
    return done.stderr, time.monotonic() - start_s


@pytest.mark.long
def test_a_layout_that_does_not_fit(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    said, seconds = refused(settings, faulty_data, tmp_path / "run", "--parallel.tp", "3")
    assert said.count("tp 3 makes 3 processes, and there are 2: change a degree, or start a multiple of 3") == 2
    assert seconds < LIMIT_S
    assert not (tmp_path / "run" / "steps.jsonl").exists()


@pytest.mark.long
def test_heads_that_do_not_divide(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    said, seconds = refused(settings, faulty_data, tmp_path / "run", "--parallel.cp", "3", num=3)
    assert said.count("their product must divide the 4 heads of vision.blocks") == 3
    assert seconds < LIMIT_S


@pytest.mark.long
def test_a_run_directory_that_another_run_writes_to(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said, seconds = refused(settings, faulty_data, run)
    assert said.count(f"another run is writing to {run}; choose another --run.dir") == 2
    assert seconds < LIMIT_S


@pytest.mark.long
def test_a_run_directory_that_cannot_be_written(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    (tmp_path / "file").write_text("")
    said, seconds = refused(settings, faulty_data, tmp_path / "file" / "run")
    assert said.count("cannot write to the run directory") == 2
    assert seconds < LIMIT_S


@pytest.mark.long
def test_a_batch_with_too_few_samples(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    said, seconds = refused(settings, faulty_data, tmp_path / "run", "--train.batch_size", "1")
    assert said.count("train.batch_size is 1, which 2 processes cannot share: make it 2 or more, or start fewer") == 2
    assert seconds < LIMIT_S


@pytest.mark.long
def test_another_model_than_the_run_began_with(tmp_path: Path, settings: Path, faulty_data: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "steps.jsonl").write_text("")
    (run / "recipe.toml").write_text('[model]\nname = "gr00t"\n')
    said, seconds = refused(settings, faulty_data, run, "--resume")
    assert said.count("model.name was 'gr00t' when this run began and is 'pi05'") == 2
    assert seconds < LIMIT_S
