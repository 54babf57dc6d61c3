"""A run goes on by itself where the same launch began it, and where it is told to."""

from pathlib import Path

import pytest

from vlarge.contracts import InputError
from vlarge.train.health.restart import decide_resume, mark
from vlarge.train.parallel.world import World


def begin(run_dir: Path, launch: str) -> None:
    mark(run_dir, World(launch=launch))
    run_dir.mkdir(exist_ok=True)
    (run_dir / "steps.jsonl").touch()


def test_a_launch_continues_what_it_began_and_nothing_else(tmp_path: Path) -> None:
    ours = World(launch="ours")
    assert not decide_resume("false", tmp_path / "run", ours)
    mark(tmp_path / "run", ours)
    assert not decide_resume("false", tmp_path / "run", ours)  # it died before it had written anything
    begin(tmp_path / "run", "ours")
    assert decide_resume("false", tmp_path / "run", ours)
    assert not decide_resume("false", tmp_path / "run", World(launch="another"))
    assert not decide_resume("false", tmp_path / "run", World())
    begin(tmp_path / "alone", "")
    assert not decide_resume("false", tmp_path / "alone", World())


def test_what_is_asked_for(tmp_path: Path) -> None:
    assert decide_resume("true", tmp_path, World())
    assert not decide_resume("auto", tmp_path, World())
    begin(tmp_path, "another")
    assert decide_resume("auto", tmp_path, World(launch="ours"))
    with pytest.raises(InputError, match="--resume=maybe: use --resume, or --resume=auto"):
        decide_resume("maybe", tmp_path, World())
