"""A converted dataset shows what its source shows, frame by frame; a killed one goes on, a wrong one is found."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlarge.cli import main as cli
from vlarge.contracts import InputError
from vlarge.data.check import Unreachable
from vlarge.data.config import DataConfig, Source
from vlarge.data.convert import parts, run
from vlarge.data.convert.plan import CameraPlan
from vlarge.data.convert.run import Conversion, Converter
from vlarge.data.convert.verify import Mismatch, block_errors, check_episodes, compare_frames, psnr_db
from vlarge.data.encode import Encoding, encode_clip
from vlarge.data.formats import lerobot
from vlarge.data.index import Dataset, open_dataset

TOP, WRIST = "observation.images.top", "observation.images.wrist"
SIZE = 64
# name -> what is generated; sizes of cameras, several episodes per file, B-frames, an open group of pictures
SOURCES = {
    "v2.1-h264": {"format": "v2.1", "codec": "h264", "gop": 6},
    "v3.0-h264": {"format": "v3.0", "codec": "h264", "gop": 4, "video_episodes": "3,2", "data_episodes": 2},
    "v3.0-av1": {"format": "v3.0", "codec": "libsvtav1", "gop": 2},
}
UNCUTTABLE = {
    "open groups of pictures": {"format": "v3.0", "codec": "hevc", "gop": 7, "length": "22"},
    "pictures in the table": {"format": "v3.0", "images": True},
}


@pytest.fixture(scope="module")
def sources(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, options in SOURCES.items():
        make_datasets.make(folder / name, make_datasets.Spec(episodes=6, length="7:14", **options))
    return folder


def _convert(source: Path, out: Path, **options: Any) -> Conversion:
    return Converter(Source(path=str(source)), out, **options).run()


def _open(root: Path) -> Dataset:
    return open_dataset(Source(path=str(root)))


def _check_same(make_datasets: ModuleType, source: Dataset, copy: Dataset, size: int | None) -> float:
    """Numbers, tasks and the identity of every frame are the source's; returns the least PSNR."""
    least_db = np.inf
    assert [e.length for e in copy.episodes] == [e.length for e in source.episodes]
    assert (copy.faults, copy.fps, copy.format) == ((), source.fps, "lerobot-v3.0")
    for a, b in zip(source.episodes, copy.episodes, strict=True):
        ours, theirs = source.read_table(a), copy.read_table(b)
        np.testing.assert_array_equal(ours.state_TA, theirs.state_TA)
        np.testing.assert_array_equal(ours.action_TA, theirs.action_TA)
        assert ours.tasks == theirs.tasks
        for number, key in enumerate(source.camera_keys):
            expected, found = (d.read_frames(e, key, range(e.length), s) for d, e, s in
                               ((source, a, size), (copy, b, None)))  # fmt: skip
            assert expected.shape == found.shape
            if size is None:
                who = [make_datasets.decode_identity(image) for image in found]
                assert who == [(number, a.index, t) for t in range(a.length)]
            errors = ((expected.astype(float) - found) ** 2).mean((1, 2, 3))
            least_db = min(least_db, 10 * np.log10(255**2 / max(errors.max(), 1e-9)))
    return float(least_db)


@pytest.mark.parametrize("name", SOURCES)
def test_video_that_needs_no_change_is_copied(
    sources: Path, make_datasets: ModuleType, tmp_path: Path, name: str
) -> None:
    done = _convert(sources / name, tmp_path / "copy", num_workers=2)
    assert [camera.encoding for camera in done.cameras] == [None, None]
    source, copy = _open(sources / name), _open(tmp_path / "copy")
    assert _check_same(make_datasets, source, copy, None) > 99
    assert any(len(set(source.read_table(e).tasks)) > 1 for e in source.episodes)
    assert [c.codec for c in copy.cameras.values()] == [c.codec for c in source.cameras.values()]
    assert len(list((tmp_path / "copy/videos").rglob("*.mp4"))) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize("name", UNCUTTABLE)
def test_pictures_that_cannot_be_copied_are_encoded(make_datasets: ModuleType, tmp_path: Path, name: str) -> None:
    make_datasets.make(tmp_path / "source", make_datasets.Spec(**{"episodes": 3, "length": "9", **UNCUTTABLE[name]}))
    done = _convert(tmp_path / "source", tmp_path / "copy")
    assert [camera.encoding for camera in done.cameras] == [Encoding()] * 2
    assert _check_same(make_datasets, _open(tmp_path / "source"), _open(tmp_path / "copy"), None) > 36


@pytest.mark.parametrize("encoding", [None, Encoding(codec="hevc", gop=8), Encoding(codec="av1")])
def test_resized_copies_show_what_training_would_see(
    sources: Path, make_datasets: ModuleType, tmp_path: Path, encoding: Encoding | None
) -> None:
    source = _open(sources / "v2.1-h264")
    done = _convert(sources / "v2.1-h264", tmp_path / "copy", size=SIZE, encoding=encoding)
    copy = _open(tmp_path / "copy")
    least_db = _check_same(make_datasets, source, copy, SIZE)
    assert [(c.height, c.width) for c in copy.cameras.values()] == [(SIZE, SIZE)] * 2
    assert {c.codec for c in copy.cameras.values()} == {encoding.codec if encoding else "h264"}
    told_db = [likeness.mean_psnr_db for likeness in done.likeness]
    if encoding is None or encoding.codec == "hevc":
        assert least_db >= 38
        assert np.mean(told_db) >= 40
    assert min(likeness.min_psnr_db for likeness in done.likeness) == pytest.approx(least_db, abs=1e-6)


def test_records_with_instructions_are_converted(make_datasets: ModuleType, tmp_path: Path) -> None:
    make_datasets.make(tmp_path / "source", make_datasets.Spec("rlds", episodes=3, length="5:8"))
    _convert(tmp_path / "source", tmp_path / "copy", fps=10)
    assert _check_same(make_datasets, _open(tmp_path / "source"), _open(tmp_path / "copy"), None) > 34


def test_records_without_instructions_are_converted(make_datasets: ModuleType, tmp_path: Path) -> None:
    make_datasets.make(tmp_path / "source", make_datasets.Spec("rlds", episodes=2, length="5"))
    path = next(tmp_path.rglob("features.json"))
    path.write_text(path.read_text().replace("language_instruction", "not_written"))
    _convert(tmp_path / "source", tmp_path / "copy", fps=10)
    copy = _open(tmp_path / "copy")
    assert [copy.read_table(e).tasks for e in copy.episodes] == [[""] * 5] * 2
    assert [(fault.kind, fault.action) for fault in copy.faults] == [("no_instruction", "report")]


def test_a_copy_may_be_as_odd_as_its_source_and_no_odder(sources: Path, tmp_path: Path) -> None:
    shutil.copytree(sources / "v3.0-h264", tmp_path / "odd")
    info = tmp_path / "odd/meta/info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"total_frames": 1}))
    good, odd = _open(sources / "v3.0-h264"), _open(tmp_path / "odd")
    check_episodes(odd, odd)
    with pytest.raises(Mismatch, match="the copy has a fault: wrong_totals"):
        check_episodes(good, odd)


def test_no_index_of_the_unfinished_copy_is_kept(sources: Path, tmp_path: Path) -> None:
    index_dir = Path(DataConfig.index_dir).expanduser()
    _open(sources / "v2.1-h264")
    before = sorted(index_dir.iterdir())
    _convert(sources / "v2.1-h264", tmp_path / "copy")
    assert sorted(index_dir.iterdir()) == before


def test_a_rate_that_no_one_states_has_to_be_given(
    make_datasets: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "records", tmp_path / "copy"
    make_datasets.make(source, make_datasets.Spec("rlds", episodes=2, length="5", cameras="top"))

    def convert(*options: str) -> tuple[int, str]:
        return cli.main(["data", "convert", str(source), str(out), *options]), capsys.readouterr().err

    for options, message in (
        ((), "it does not say how many frames a second has; give the number with --fps"),
        (("--fps", "0"), "fps is 0; give the number of frames in a second"),
    ):
        assert convert(*options) == (2, f"error: {source}: {message}\n" if not options else f"error: {message}\n")
    assert convert("--fps", "5")[0] == 0
    copy = _open(out)
    assert copy.fps == 5
    assert copy.features["action"]["names"] == [f"action_{i}" for i in range(copy.action_dim)]
    times = pq.read_table(next(out.rglob("data/**/*.parquet")))["timestamp"].to_pylist()
    assert times[:5] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert [make_datasets.decode_identity(i)[2] for i in copy.read_frames(copy.episodes[1], TOP, range(5))] == [
        *range(5)
    ]


def test_cameras_left_out_stay_out(sources: Path, tmp_path: Path) -> None:
    Converter(Source(path=str(sources / "v3.0-h264"), cameras=(WRIST,)), tmp_path / "copy").run()
    assert list(_open(tmp_path / "copy").cameras) == [WRIST]


@pytest.fixture
def partly_broken(sources: Path, tmp_path: Path) -> Path:
    """A source whose episodes 1 and 4 lack a file."""
    root = tmp_path / "broken"
    shutil.copytree(sources / "v2.1-h264", root)
    for number in (1, 4):
        next(root.rglob(f"videos/**/{WRIST}/episode_{number:06d}.mp4")).unlink()
    return root


def test_what_cannot_be_read_is_left_out_and_said(
    partly_broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copy"
    assert cli.main(["data", "convert", str(partly_broken), str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["source_episodes"] == [0, 2, 3, 5]
    assert [fault["episode"] for fault in answer["left_out"]] == [1, 4]
    assert answer["cameras"][TOP]["video"] == "copied"
    origin = json.loads((out / "meta/source.json").read_text())
    assert (origin["episodes"], origin["format"]) == ([0, 2, 3, 5], "lerobot-v2.1")
    assert [fault["kind"] for fault in origin["left_out"]] == ["partial_download"] * 2
    copy, source = _open(out), _open(partly_broken)
    assert [e.index for e in copy.episodes] == [0, 1, 2, 3]
    np.testing.assert_array_equal(
        copy.read_table(copy.episodes[1]).action_TA, source.read_table(source.episodes[1]).action_TA
    )


def test_a_person_is_told(partly_broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "convert", str(partly_broken), str(tmp_path / "copy"), "--size", "64"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 episodes" in shown
    assert "encoded (h264)" in shown
    assert "2 episodes left out (partial_download): 1, 4; the others have new numbers" in shown


KILLED = """
import os, sys
from vlarge.data.config import Source
from vlarge.data.convert.plan import CameraPlan
from vlarge.data.convert.run import Converter
lines = int(sys.argv[3])
def tell(line, steps):
    global lines
    lines -= 1
    if lines == 0:
        os.kill(os.getpid(), 9)
Converter(Source(path=sys.argv[1]), sys.argv[2], size=64).run(tell)
"""


@pytest.mark.parametrize("lines", [5, 15])
def test_a_killed_conversion_goes_on_where_it_was(
    sources: Path, make_datasets: ModuleType, tmp_path: Path, lines: int
) -> None:
    out = tmp_path / "copy"
    command = [sys.executable, "-c", KILLED, str(sources / "v2.1-h264"), str(out), str(lines)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("parts/**/*.mp4")}
    assert len(made) >= min(lines, 12)
    cut = min(made)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    told: list[str] = []
    converter = Converter(Source(path=str(sources / "v2.1-h264")), out, size=SIZE)
    converter.run(lambda line, steps: told.append(line))
    assert min(lines, 12) - 1 <= sum("there already" in line for line in told) < len(made)
    assert len(told) == 24
    _check_same(make_datasets, _open(sources / "v2.1-h264"), _open(out), SIZE)
    assert [p.name for p in tmp_path.iterdir()] == ["copy"]


def test_another_conversion_does_not_take_over(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"

    def interrupt(line: str, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Converter(Source(path=str(sources / "v2.1-h264")), out, size=SIZE).run(interrupt)
    with pytest.raises(InputError, match=r"interrupted conversion that differs in: cameras, size; finish it"):
        _convert(sources / "v2.1-h264", out, size=SIZE * 2)
    _convert(sources / "v2.1-h264", out, size=SIZE)


def test_the_second_of_two_at_once_is_refused(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    refused = []

    def meanwhile(line: str, steps: int) -> None:
        if not refused:
            with pytest.raises(InputError, match="is being written by another process") as error:
                _convert(sources / "v2.1-h264", out)
            refused.append(error)

    Converter(Source(path=str(sources / "v2.1-h264")), out).run(meanwhile)
    assert refused
    assert len(_open(out).episodes) == 6


def _grey(frames: list[np.ndarray]) -> list[np.ndarray]:
    frames[4] = np.full_like(frames[4], 128)
    return frames


def _late(frames: list[np.ndarray]) -> list[np.ndarray]:
    return frames[:4] + frames[3:-1]


def _lost_block(frames: list[np.ndarray]) -> list[np.ndarray]:
    frames[4] = frames[4].copy()
    frames[4][20:40, 20:40] = 0
    return frames


@pytest.mark.parametrize(("spoil", "crf"), [(_grey, None), (_late, 20), (_late, None), (_lost_block, None)])
def test_a_wrong_frame_is_named_and_nothing_is_published(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[list[np.ndarray]], list[np.ndarray]],
    crf: int | None,
) -> None:
    """A faulty encoder: one frame of one camera of episode 2 is not what it was given."""
    calls = []

    def faulty(path: Path, frames: Any, encoding: Encoding, rate: Any) -> int:
        calls.append(path)
        given = list(frames)
        wrong = path.match("camera-01/episode-000002.*") and len(calls) <= 12
        return encode_clip(path, spoil(given) if wrong else given, encoding, rate)

    monkeypatch.setattr(parts, "encode_clip", faulty)
    out = tmp_path / "copy"
    with pytest.raises(Mismatch, match=rf"episode 2, {WRIST}, frame 4"):
        _convert(sources / "v2.1-h264", out, size=SIZE, encoding=Encoding(crf=crf))
    assert not out.exists()
    _convert(sources / "v2.1-h264", out, size=SIZE, encoding=Encoding(crf=crf))
    assert len(calls) == 13  # only the wrong part was made again


def test_a_store_that_does_not_answer_costs_nothing_that_is_made(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outage(*_: object) -> None:
        raise Unreachable("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(run, "compare_frames", outage)
        with pytest.raises(Unreachable):
            _convert(sources / "v2.1-h264", tmp_path / "copy", size=SIZE)
    joined = tmp_path / ".copy.partial/dataset/meta/info.json"
    assert joined.is_file()
    assert len(list(tmp_path.rglob("parts/**/*.npy"))) == 12
    monkeypatch.setattr(parts, "encode_clip", pytest.fail)
    _convert(sources / "v2.1-h264", tmp_path / "copy", size=SIZE)
    assert len(_open(tmp_path / "copy").episodes) == 6


def test_a_neighbour_is_found_where_pictures_hardly_differ() -> None:
    y, x = np.mgrid[:64, :64]
    frames = [np.stack([128 + 8 * np.sin((x + y + 3 * t) / 5)] * 3, -1).astype(np.uint8) for t in range(6)]
    camera = CameraPlan(TOP, 0, 64, 64, Encoding(crf=40))
    coded = [frame + np.uint8(1) for frame in frames]
    assert compare_frames(3, camera, frames, coded).min_psnr_db > 40
    for copy in (coded[:3] + coded[2:5], coded[:3] + coded[4:] + coded[5:]):
        assert psnr_db(float(block_errors(frames[3], copy[3]).mean())) > 25
        with pytest.raises(Mismatch, match=rf"episode 3, {TOP}, frame [34]: it or the frame before"):
            compare_frames(3, camera, frames, copy)


def test_a_wrong_number_is_found(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = Converter(Source(path=str(sources / "v2.1-h264")), tmp_path / "copy")
    read_table = Dataset.read_table

    def off(self: Dataset, episode: Any) -> Any:
        table = read_table(self, episode)
        if ".partial" in str(self.root) and episode.index == 3:
            table.action_TA[2] += 1e-6
        return table

    monkeypatch.setattr(Dataset, "read_table", off)
    with pytest.raises(Mismatch, match="episode 3: action differs"):
        converter.run()
    assert not (tmp_path / "copy").exists()


def test_block_errors_are_means_of_squares() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (2, 40, 50, 3), np.uint8)
    errors = block_errors(a, b)
    squares = (a.astype(float) - b) ** 2
    assert errors.shape == (3, 4)
    assert errors[1, 2] == pytest.approx(squares[16:32, 32:48].mean())
    assert errors[2, 3] == pytest.approx(squares[32:, 48:].mean())
    assert psnr_db(0) == 99
    assert psnr_db(255**2) == 0


LEROBOT_READS = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
sys.path.insert(0, sys.argv[1])
from make_datasets import decode_identity
for root in sys.argv[2:]:
    dataset = LeRobotDataset("local/x", root=root, video_backend="pyav", return_uint8=True)
    for i in np.random.default_rng(0).permutation(len(dataset)):
        item = dataset[int(i)]
        episode, frame = int(item["episode_index"]), int(item["frame_index"])
        assert item["observation.state"][:2].tolist() == [episode, frame], i
        for number, key in enumerate(dataset.meta.camera_keys):
            found = decode_identity(np.asarray(item[key]))
            assert found == (number, episode, frame), (root, key, found, episode, frame)
    print(len(dataset))
"""


@pytest.mark.long
def test_lerobot_reads_the_right_frames(sources: Path, make_datasets: ModuleType, tmp_path: Path) -> None:
    for name in SOURCES:
        _convert(sources / name, tmp_path / name)
    roots = [str(tmp_path / name) for name in SOURCES]
    code = [sys.executable, "-c", LEROBOT_READS, str(Path(str(make_datasets.__file__)).parent), *roots]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(code, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(_open(Path(root)).num_frames) for root in roots]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "8"], "size is 8; pictures can have 16 to 4096 pixels"),
        (["--codec", "h265"], "codec 'h265' is unknown; use h264, hevc, av1"),
        (["--crf", "90"], "crf is 90"),
        (["--codec", "av1", "--size", "48"], "av1 needs 64 pixels"),
        (["--cameras", "observation.images.topp"], f"did you mean '{TOP}'"),
        (["--workers", "-1"], "workers is -1"),
        (["--fps", "10"], "it has 30 frames a second, not 10; leave out --fps"),
    ],
)
def test_a_mistake_is_one_line(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert cli.main(["data", "convert", str(sources / "v3.0-h264"), str(tmp_path / "x"), *options]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert message in shown
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused(sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "convert", str(sources / "v3.0-h264"), str(tmp_path)]) == 2
    assert "exists; choose another folder" in capsys.readouterr().err
    start_s = time.monotonic()
    assert cli.main(["data", "convert", str(tmp_path), str(tmp_path / "x")]) == 2
    assert time.monotonic() - start_s < 5


def test_a_copy_inside_the_source_is_refused(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sources)
    for out in (sources / "v3.0-h264/copy", tmp_path / "link/v3.0-h264/videos/copy"):
        with pytest.raises(InputError, match=r"copy lies inside the dataset .*v3.0-h264, which would change; choose"):
            _convert(sources / "v3.0-h264", out)
        assert not list(out.parent.glob("*copy*"))


def test_nothing_to_convert_is_refused(sources: Path, tmp_path: Path) -> None:
    root = tmp_path / "empty"
    shutil.copytree(sources / "v2.1-h264", root)
    shutil.rmtree(root / "data")
    with pytest.raises(InputError, match="no episode to convert; the first of 6 faults: partial_download"):
        _convert(root, tmp_path / "copy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty"]


def test_cameras_of_several_sizes_need_one(make_datasets: ModuleType, sources: Path, tmp_path: Path) -> None:
    root = tmp_path / "mixed"
    shutil.copytree(sources / "v2.1-h264", root)
    path = next(root.rglob(f"videos/**/{WRIST}/episode_000002.mp4"))
    length = _open(root).episodes[2].length
    encode_clip(path, (make_datasets.paint(1, 2, t, 48, 64) for t in range(length)), Encoding(), Fraction(30))
    with pytest.raises(InputError, match=f"{WRIST} has pictures of 48x64, 96x128; make them equal with --size"):
        _convert(root, tmp_path / "copy")
    _convert(root, tmp_path / "copy", size=SIZE)
    _check_same(make_datasets, _open(root), _open(tmp_path / "copy"), SIZE)


def test_an_episode_with_numbers_that_are_not_finite_is_left_out_and_named(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed, index = [], lerobot.index
    monkeypatch.setattr(lerobot, "index", lambda store, *rest: indexed.append(store) or index(store, *rest))
    source = tmp_path / "source"
    shutil.copytree(sources / "v3.0-h264", source)
    file = sorted(source.glob("data/*/*.parquet"))[0]
    table = pq.read_table(file)
    actions = table["action"].to_pylist()
    actions[2][0] = float("nan")
    place = table.schema.get_field_index("action")
    column = pa.array(actions, table["action"].type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), file)
    done = _convert(source, tmp_path / "copy")
    assert [e.index for e in done.dataset.episodes] == [1, 2, 3, 4, 5]
    assert {(fault.kind, fault.episode) for fault in done.left_out} == {("nan_actions", 0)}
    assert len(indexed) == 2  # the source and the copy
    origin = json.loads((tmp_path / "copy/meta/source.json").read_text())
    assert origin["episodes"] == [1, 2, 3, 4, 5]
    assert [fault["episode"] for fault in origin["left_out"]] == [0]
    assert len(_open(tmp_path / "copy").episodes) == 5


def test_a_list_of_what_to_leave_out_is_honoured(sources: Path, tmp_path: Path) -> None:
    source, listed = sources / "v2.1-h264", tmp_path / "list.json"
    whole = _open(source)
    assert len(whole.episodes) == 6
    listed.write_text(json.dumps({"revision": whole.revision, "episodes": {"2": "blurred"}}))
    assert cli.main(["data", "convert", str(source), str(tmp_path / "copy"), "--quarantine", str(listed)]) == 0
    origin = json.loads((tmp_path / "copy/meta/source.json").read_text())
    assert origin["episodes"] == [0, 1, 3, 4, 5]
    assert [(fault["kind"], fault["episode"]) for fault in origin["left_out"]] == [("quarantined", 2)]
