"""`vlarge data info`, `check` and `stats`: what machines read, what people read, and the exit codes."""

import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest

from vlarge.cli import main as cli
from vlarge.cli.data import look, opening
from vlarge.contracts import InputError
from vlarge.data.config import DataConfig, Source
from vlarge.data.deep import Checker, deep_check
from vlarge.data.fetch import open_store
from vlarge.data.formats import lerobot
from vlarge.data.index import Dataset, open_dataset, require_dataset
from vlarge.data.manifest import Episode, EpisodeTable
from vlarge.data.mp4 import read_video_file
from vlarge.data.stats import FeatureStats


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


def test_info_says_that_a_rate_is_not_known(
    make_datasets: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_datasets.make(tmp_path / "set", make_datasets.Spec("rlds", episodes=1, length="3", cameras="top"))
    assert cli.main(["data", "info", str(tmp_path / "set")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "rlds, 1 episodes, 3 frames at an unknown rate (time is shown at 10 fps)" in shown


@pytest.mark.parametrize("command", ["info", "check", "view", "convert"])
def test_a_long_opening_is_told(
    command: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "QUIET_S", 0.0)
    monkeypatch.setattr(opening, "BETWEEN_S", 0.0)
    root = shutil.copytree(good, tmp_path / "set")  # of which no index is kept
    more = {"view": ("--episode", "0", "--out", str(tmp_path / "a.png")), "convert": (str(tmp_path / "copy"),)}
    assert cli.main(["data", command, str(root), *more.get(command, ())]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "files checked" in line]
    num_files = len(told)
    assert told == [f"{root}: {number} of {num_files} files checked" for number in range(1, num_files + 1)]
    assert num_files >= 4


@pytest.mark.parametrize("command", ["info", "check", "stats", "bench", "view", "convert"])
def test_help_says_where_a_dataset_may_lie(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["data", command, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "A dataset folder, an object store's address, or hf://user/name." in shown


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
    assert all({"kind", "action", "episode", "file", "detail", "frames"} == set(fault) for fault in faults)
    assert [fault["episode"] for fault in faults] == [2, 3]
    assert f"{faults[0]['kind']}  episodes 2-3" in shown


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
    shown = capsys.readouterr().out
    assert f"action, {stats['action']['count']} rows, quantiles exact" in shown  # type: ignore[call-overload, index]
    assert "action: q01 and q99 in meta/stats.json agree." in shown


@pytest.mark.parametrize("by", ["episode", "task"])
def test_stats_by_episode_and_task(good: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    _, whole = answer(capsys, "data", "stats", str(good))
    code, groups = answer(capsys, "data", "stats", str(good), "--by", by)
    assert code == 0
    assert next(iter(groups)) == ("0" if by == "episode" else "pick up block 0 and put it in the bin")
    counts = [stats["action"]["count"] for stats in groups.values()]  # type: ignore[index]
    assert sum(counts) == whole["action"]["count"]  # type: ignore[call-overload, index]
    assert cli.main(["data", "stats", str(good), "--by", by]) == 0
    shown = capsys.readouterr().out
    for name in groups:
        assert f"{'episode ' * (by == 'episode')}{name}: " in shown


def test_stats_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    column = np.array([-1.23456e-30, 1234567.8, -0.000123456, 0.1])
    feature = FeatureStats(column, column, column, column, column, column, count=10)
    look._print_feature("episode 1: action, 10 rows", feature)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_rows_left_out_are_told(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Dataset.read_table

    def read_with_nan(self: Dataset, episode: Episode) -> EpisodeTable:
        table = read(self, episode)
        action = table.action_TA.copy()
        action[0, 0] = np.nan
        return EpisodeTable(table.state_TA, action, table.tasks)

    monkeypatch.setattr(Dataset, "read_table", read_with_nan)
    assert cli.main(["data", "stats", str(good)]) == 0
    assert "4 rows with NaN or inf are left out." in capsys.readouterr().out


def test_check_answers_machines_when_there_is_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "none"):
        code, found = answer(capsys, "data", "check", str(path))
        assert (code, found["ok"], found["num_episodes_ok"]) == (2, False, 0)
        assert [(f["kind"], f["action"], f["episode"]) for f in found["faults"]] == [("not_a_dataset", "refuse", None)]  # type: ignore[attr-defined]


def damage_a_picture(root: Path) -> int:
    """Overwrites the first picture of the second episode; returns that episode."""
    episode = open_dataset(Source(path=str(root))).episodes[1]
    part = episode.videos["observation.images.top"]
    table = read_video_file(open_store(root), part.file)
    packet = int(table.frame_packets_F[part.first_frame])
    data, start, size = (
        bytearray((root / part.file).read_bytes()),
        *(int(a[packet]) for a in (table.offset_P, table.size_P)),
    )
    data[start + 40 : start + size] = bytes(size - 40)
    (root / part.file).write_bytes(data)
    return episode.index


def test_a_deep_check_finds_what_only_decoding_finds_and_training_honours_its_list(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, written = tmp_path / "set", tmp_path / "quarantine.json"
    shutil.copytree(good, root)
    episode = damage_a_picture(root)
    assert answer(capsys, "data", "check", str(root))[0] == 0
    code, found = answer(capsys, "data", "check", str(root), "--deep", "--quarantine", str(written))
    assert (code, found["num_episodes_ok"]) == (1, 3)
    faults = found["faults"]
    assert isinstance(faults, list)
    assert [(f["kind"], f["action"], f["episode"]) for f in faults] == [("damaged_frames", "quarantine", episode)]
    assert faults[0]["file"].endswith(".mp4")
    assert faults[0]["detail"].startswith("frames 0")
    listed = json.loads(written.read_text())
    assert list(listed["episodes"]) == [str(episode)]
    assert listed["faults"] == faults
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []

    left = open_dataset(Source(path=str(root), quarantine=str(written)))
    assert [e.index for e in left.episodes] == [e for e in range(4) if e != episode]
    assert [(f.kind, f.action, f.episode) for f in left.faults] == [("quarantined", "quarantine", episode)]
    held_back = open_dataset(Source(path=str(root), quarantine=str(written), exclude_episodes=(3,)))
    assert [e.index for e in held_back.episodes] == [e for e in range(3) if e != episode]
    (root / "meta/info.json").write_text((root / "meta/info.json").read_text() + " ")
    with pytest.raises(InputError, match=r"is of dataset revision .*write it again"):
        open_dataset(Source(path=str(root), quarantine=str(written)))


def test_a_deep_check_of_a_good_dataset_decodes_each_frame_once(good: Path) -> None:
    source = Source(path=str(good))
    dataset, told = open_dataset(source), []
    assert deep_check(source, dataset, lambda line, frames: told.append(frames)) == []
    assert sum(told) == 2 * dataset.num_frames


def test_a_deep_check_survives_a_file_that_crashes_the_decoder(good: Path) -> None:
    source = Source(path=str(good))
    dataset = open_dataset(source)
    key = dataset.camera_keys[0]
    with closing(Checker(source, dataset)) as decoder:
        assert decoder.faults(0, key) == []
        assert decoder.pid is not None
        os.kill(decoder.pid, signal.SIGSEGV)
        (fault,) = decoder.faults(1, key)
        assert (fault.kind, fault.action, fault.episode) == ("damaged_frames", "quarantine", 1)
        assert fault.file == dataset.episodes[1].videos[key].file
        assert "killed by SIGSEGV" in fault.detail
        assert decoder.faults(1, key) == []
        os.kill(decoder.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"killed by SIGKILL.; check again"):
            decoder.faults(1, key)


@pytest.fixture
def unindexed(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the index of the good dataset as a whole is there, and no other may be made."""
    open_dataset(Source(path=str(good)))
    monkeypatch.setattr(lerobot, "index", lambda *_: pytest.fail("it was indexed for a list that cannot be used"))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"revision": 1, "episodes": {}}',
        '{"revision": "a", "episodes": [1]}',
        '{"revision": "REVISION", "episodes": {"-1": "x"}}',
        '{"revision": "REVISION", "episodes": {"1": 5}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_quarantine_list_is_refused(
    content: str | None, good: Path, tmp_path: Path, unindexed: None
) -> None:
    path = tmp_path / "quarantine.json"
    if content is not None:
        path.write_text(content.replace("REVISION", open_dataset(Source(path=str(good))).revision))
    with pytest.raises(InputError, match=r"quarantine\.json: ") as caught:
        open_dataset(Source(path=str(good), quarantine=str(path)))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"quarantine\.json: "):
        require_dataset(DataConfig(path=str(good), quarantine=str(path)))


def test_a_quarantine_list_of_another_revision_is_refused(good: Path, tmp_path: Path, unindexed: None) -> None:
    path = tmp_path / "quarantine.json"
    path.write_text('{"revision": "another", "episodes": {}}')
    with pytest.raises(InputError, match="list is of dataset revision 'another', the dataset has "):
        open_dataset(Source(path=str(good), quarantine=str(path)))


def test_a_quarantine_list_that_cannot_be_written_is_one_line(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "check", str(good), "--quarantine", str(tmp_path / "none" / "list.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


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


def test_other_keys_of_state_and_action(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many datasets have other names for them: every command takes them, and a quarantine list still fits."""
    root = tmp_path / "renamed"
    shutil.copytree(good, root)
    for file in root.rglob("data/**/*.parquet"):
        table = pq.read_table(file)
        names = {"observation.state": "state", "action": "actions"}
        pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), file)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {
        {"observation.state": "state", "action": "actions"}.get(key, key): feature
        for key, feature in info["features"].items()
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    keys = ["--state-key", "state", "--action-key", "actions"]
    assert answer(capsys, "data", "check", str(root))[0] == 2
    assert answer(capsys, "data", "check", str(root), *keys) == (0, {"ok": True, "num_episodes_ok": 4, "faults": []})
    assert answer(capsys, "data", "info", str(root), *keys)[1]["num_episodes"] == 4
    assert answer(capsys, "data", "stats", str(root), *keys)[0] == 0
    assert answer(capsys, "data", "view", str(root), "--episode", "0", "--out", str(tmp_path / "a.png"), *keys)[0] == 0
    assert answer(capsys, "data", "convert", str(root), str(tmp_path / "copy"), *keys)[0] == 0
    assert answer(capsys, "data", "check", str(tmp_path / "copy"))[0] == 0
    sorted(root.rglob("data/**/*.parquet"))[-1].unlink()
    written = tmp_path / "list.json"
    assert answer(capsys, "data", "check", str(root), "--quarantine", str(written), *keys)[0] == 1
    source = Source(path=str(root), quarantine=str(written), state_key="state", action_key="actions")
    assert len(open_dataset(source).episodes) == 2
