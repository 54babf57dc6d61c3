"""`vlarge data info`, `check` and `stats`: what machines read, what people read, and the exit codes."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from vlarge.cli import main as cli


@pytest.fixture(scope="module")
def good(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("datasets") / "good"
    make_datasets.make(root, make_datasets.Spec("v3.0", episodes=4, length="4:8", codec="h264", data_episodes=2))
    return root


@pytest.fixture
def broken(good: Path, tmp_path: Path) -> Path:
    """The same without the parquet file of its last two episodes."""
    root = tmp_path / "broken"
    shutil.copytree(good, root)
    sorted(root.rglob("data/**/*.parquet"))[-1].unlink()
    return root


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, object]]:
    code = cli.main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_info_for_machines(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, info = answer(capsys, "data", "info", str(good))
    assert code == 0
    assert {"format", "num_episodes", "num_frames", "fps", "cameras", "features", "tasks"} <= set(info)
    assert (info["format"], info["num_episodes"]) == ("lerobot-v3.0", 4)


def test_info_for_people(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "info", str(good)]) == 0
    shown = capsys.readouterr().out
    assert "lerobot-v3.0, 4 episodes" in shown
    assert "observation.state" in shown
    assert "96 × 128" in shown


def test_check_finds_nothing_in_a_good_dataset(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "data", "check", str(good)) == (0, {"ok": True, "num_episodes_ok": 4, "faults": []})


def test_check_says_no_when_episodes_have_to_be_left_out(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "data", "check", str(broken))
    assert code == 1
    assert not found["ok"]
    assert cli.main(["data", "check", str(broken)]) == 1
    shown = capsys.readouterr().out
    faults = found["faults"]
    assert isinstance(faults, list)
    assert all({"kind", "action", "episode", "file", "detail"} == set(fault) for fault in faults)
    assert [fault["episode"] for fault in faults] == [2, 3]
    assert f"{faults[0]['kind']}  episodes 2–3" in shown


def test_check_refuses_a_dataset_without_an_episode(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "empty"
    shutil.copytree(good, root)
    for name in ("data", "videos", "meta/episodes"):
        shutil.rmtree(root / name)
    code, found = answer(capsys, "data", "check", str(root))
    assert (code, found["ok"], found["num_episodes_ok"]) == (2, False, 0)


def test_stats_are_given_by_feature(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, stats = answer(capsys, "data", "stats", str(good))
    assert code == 0
    assert {"observation.state", "action"} == set(stats)
    assert {"min", "max", "mean", "std", "q01", "q99", "count"} == set(stats["action"])  # type: ignore[call-overload]
    assert cli.main(["data", "stats", str(good)]) == 0
    assert "action" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "check", "stats"])
def test_a_path_that_is_no_dataset_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "none"):
        assert cli.main(["data", command, str(path)]) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith(f"error: {path}")
        assert shown.err.count("\n") == 1
        assert not shown.out
