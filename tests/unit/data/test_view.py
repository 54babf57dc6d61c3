"""An episode drawn: the right frames in their places, curves that show what they should, one line for mistakes."""

import json
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw

from vlarge.cli import main as cli
from vlarge.contracts import InputError
from vlarge.data.config import Source
from vlarge.data.formats.write import LeRobotWriter
from vlarge.data.view import film, text
from vlarge.data.view.plots import COLOURS, Panel, constant_note, draw_panel, nice_range, panels_of
from vlarge.data.view.scene import Curves, open_scene
from vlarge.data.view.sheet import MARGIN, WIDTH, draw_sheet, even_frames
from vlarge.data.view.text import shaped, shorten, width_of, wrap

TOP, WRIST = "observation.images.top", "observation.images.wrist"
LENGTH = 40


@pytest.fixture(scope="module")
def root(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes; the first changes its task half-way."""
    folder: Path = tmp_path_factory.mktemp("view") / "kitchen"
    cameras = {TOP: (96, 128), WRIST: (96, 96)}
    with LeRobotWriter(
        folder, fps=10, cameras=cameras, state_names=["pan", "lift", "still"], action_names=["x"], robot_type="x"
    ) as writer:
        for e in range(2):
            t = np.arange(LENGTH)
            states = np.stack([np.sin(t / 6), 40 + t, np.full(LENGTH, 0.5)], 1)
            images = {
                key: np.stack([make_datasets.paint(c, e, int(i), *size) for i in t])
                for c, (key, size) in enumerate(cameras.items())
            }
            writer.add_episode(["open the drawer"] * 20 + ["close it"] * 20, states, t[:, None] / 10, images)
        writer.finish()
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _identities(make_datasets: ModuleType, sheet: np.ndarray, shape: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Who the pictures in the rows of a sheet say they are, found by their place."""
    height, width = shape
    found = []
    blank = (sheet[:, MARGIN : MARGIN + width] == 255).all((1, 2))
    for top in range(1, sheet.shape[0] - height):
        if blank[top - 1] and not blank[top : top + height].any() and blank[top + height]:
            for column in range(8):
                x = MARGIN + column * (width + 14)
                found.append(make_datasets.decode_identity(sheet[top : top + height, x : x + width]))
    return found


def test_the_sheet_shows_each_camera_at_even_intervals(root: Path, make_datasets: ModuleType, here: Path) -> None:
    assert cli.main(["data", "view", str(root), "--episode", "1"]) == 0
    with Image.open(here / "kitchen-episode-1.png") as image:
        sheet = np.asarray(image.convert("RGB"))
    assert sheet.shape[1] == WIDTH
    frames = even_frames(LENGTH, 8)
    assert (frames[0], frames[-1], len(frames)) == (0, LENGTH - 1, 8)
    width = (WIDTH - 2 * MARGIN - 7 * 14) // 8
    assert _identities(make_datasets, sheet, (round(width * 96 / 128), width)) == [(0, 1, t) for t in frames]
    assert _identities(make_datasets, sheet, (width, width)) == [(1, 1, t) for t in frames]
    for edge in (sheet[:MARGIN], sheet[-MARGIN:], sheet[:, :MARGIN], sheet[:, -MARGIN + 12 :]):
        assert (edge == 255).all()


def test_one_camera_is_one_row(root: Path, make_datasets: ModuleType) -> None:
    scene = open_scene(Source(path=str(root)), 0, ["wrist"])
    assert scene.cameras == (WRIST,)
    width = (WIDTH - 2 * MARGIN - 7 * 14) // 8
    found = _identities(make_datasets, np.asarray(draw_sheet(scene)), (width, width))
    assert [who[:2] for who in found] == [(1, 0)] * 8


def test_a_name_that_several_cameras_have_is_refused(make_datasets: ModuleType, tmp_path: Path) -> None:
    head, wrist = "observation.images.head.left", "observation.images.wrist.left"
    spec = make_datasets.Spec(episodes=1, length="3", codec="h264", cameras=f"{head},{wrist}")
    make_datasets.make(tmp_path / "set", spec)
    source = Source(path=str(tmp_path / "set"))
    with pytest.raises(InputError, match=f"camera left may be {head} or {wrist}; give the whole name"):
        open_scene(source, 0, ["left"])
    assert open_scene(source, 0, [wrist, head]).cameras == (wrist, head)


def test_what_is_said_about_the_episode(root: Path) -> None:
    scene = open_scene(Source(path=str(root)), 0, ())
    assert scene.title == "kitchen · episode 0"
    assert scene.subtitle == "40 frames · 4.0 s at 10 fps · lerobot-v3.0"
    assert scene.tasks == ((0, "open the drawer"), (20, "close it"))
    assert [curves.names for curves in scene.curves] == [("pan", "lift", "still"), ("x",)]


def test_numbers_that_are_not_finite_are_said_and_not_called_constant() -> None:
    t = np.linspace(0, 1, 50)[:, None]
    values = np.concatenate([t, t, np.ones((50, 1))], axis=1)
    values[[0, 3], 1] = np.nan
    values[7, 2] = np.inf
    curves = Curves("State", values, ("a", "b", "c"))
    assert [panel.dims for panel in panels_of(curves)] == [(0, 1)]
    assert constant_note(curves).endswith("constant: c (1 not finite) = 1")
    page = Image.new("RGB", (600, 400), "white")
    draw_panel(page, panels_of(curves)[0], 0, 0, 600, [])
    assert np.isfinite(curves.drawn_TA).all()
    assert curves.drawn_TA[3, 1] == curves.values_TA[2, 1]


def test_dimensions_that_hide_each_other_are_drawn_apart() -> None:
    t = np.linspace(0, 1, 50)
    values = np.stack([t, 300 * t, np.ones(50), 1 - t, t * 2], 1)
    curves = Curves("State", values, ("a", "b", "c", "d", "e"))
    assert [panel.dims for panel in panels_of(curves)] == [(0, 3, 4), (1,)]
    assert constant_note(curves).endswith("constant: c = 1")
    many = Curves("State", np.tile(t[:, None], (1, 15)), tuple(map(str, range(15))))
    assert [len(panel.dims) for panel in panels_of(many)] == [7, 7, 1]
    assert len(set(COLOURS)) == 7


def test_a_curve_goes_where_its_values_are() -> None:
    values = np.linspace(0, 10, 101)[:, None]
    page = Image.new("RGB", (800, 300), "white")
    axes = draw_panel(page, Panel(Curves("x", values, ("x",)), (0,)), 0, 0, 800, ())
    pixels = np.asarray(page).astype(int)
    blue = np.array([0x00, 0x72, 0xB2])
    for frame in (10, 50, 90):
        column = pixels[axes.top : axes.top + axes.height, round(axes.x(frame))]
        nearest = axes.top + int(np.abs(column - blue).sum(1).argmin())
        assert abs(nearest - (axes.top + (1 - frame / 100) * axes.height)) <= 2


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, (0, 10, 5)), (-2.1, 1.2, (-3, 2, 1)), (0.0003, 0.0006, (0.0003, 0.0006, 0.0001)), (5, 5, (4, 6, 2))],
)
def test_ticks_are_round(low: float, high: float, expected: tuple[float, float, float]) -> None:
    found_low, found_high, step = nice_range(low, high)
    assert found_low - step / 100 <= low <= high <= found_high + step / 100
    assert step == pytest.approx(expected[2])
    assert (found_high - found_low) / step == pytest.approx(round((found_high - found_low) / step))


def test_long_texts_fit() -> None:
    lines = wrap("put the red cup on the shelf " * 40, 20, 500, 4)
    assert len(lines) == 4
    assert all(width_of(line, 20) <= 500 for line in lines)
    assert lines[-1].endswith("…")
    assert all(width_of(line, 20) <= 100 for line in wrap("x" * 200, 20, 100, 9))
    assert shorten("short", 20, 500) == "short"
    assert wrap("", 20, 100, 3) == [""]


@pytest.mark.parametrize("word", ["put the red cup on the shelf ", "x", "棚"])
def test_little_more_than_what_fits_of_a_long_text_is_measured(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long, measured = (word * 4000)[:4000], []
    monkeypatch.setattr(text, "width_of", lambda line, size: measured.append(len(line)) or width_of(line, size))
    short = shorten(long, 20, 500)
    kept = len(short) - 1
    assert short == long[:kept] + "…"
    assert width_of(short, 20) <= 500 < width_of(long[: kept + 1] + "…", 20)
    assert sum(measured) < 4000 + 20 * kept
    measured.clear()
    lines = wrap(long, 20, 500, 10_000)
    assert "".join(lines).replace(" ", "") == long.replace(" ", "")
    assert max(width_of(line, 20) for line in lines) <= 500
    assert sum(measured) < 20 * 4000


def test_characters_that_no_font_has_are_escaped() -> None:
    line, font = shaped("a\u0378\nb", 20)
    assert line == "a\\u0378 b"
    ImageDraw.Draw(Image.new("RGB", (10, 10))).text((0, 0), line, font=font)


def test_the_film_has_every_frame_of_each_camera(root: Path, make_datasets: ModuleType, here: Path) -> None:
    assert cli.main(["data", "view", str(root), "--episode", "1", "--out", "film.mp4"]) == 0
    with av.open("film.mp4") as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 10
    assert len(frames) == LENGTH
    assert frames[0].shape[1] == WIDTH
    _, boxes = film._page(open_scene(Source(path=str(root)), 1, ()))
    for camera, (left, top, width, height) in enumerate(boxes):
        found = [make_datasets.decode_identity(frame[top : top + height, left : left + width]) for frame in frames]
        assert found == [(camera, 1, t) for t in range(LENGTH)]
    assert len(boxes) == 2


def test_the_recording_is_rerun_s(root: Path, here: Path) -> None:
    rerun = pytest.importorskip("rerun")
    assert cli.main(["data", "view", str(root), "--episode", "0", "--out", "episode.rrd"]) == 0
    store = rerun.experimental.RrdReader("episode.rrd").store()
    rows: dict[str, int] = {}
    for chunk in store.stream().to_chunks():
        if not chunk.is_static:
            rows[chunk.entity_path] = rows.get(chunk.entity_path, 0) + chunk.num_rows
    assert rows == {f"/{TOP}": LENGTH, f"/{WRIST}": LENGTH, "/state": LENGTH, "/action": LENGTH, "/task": 2}


def test_machines_are_told(root: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "view", str(root), "--episode", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["path"], answer["num_frames"]) == ("kitchen-episode-0.png", LENGTH)
    assert answer["cameras"] == [TOP, WRIST]


def _error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["data", "view", *argv]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert not shown.out
    return shown.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--episode", "7"], "no episode 7; those that can be read are 0 to 1"),
        (["--episode", "-1"], "no episode -1; those that can be read are 0 to 1"),
        (["--episode", "0", "--camera", "wirst"], "no camera wirst; did you mean wrist?"),
        (["--episode", "0", "--out", "a.gif"], "must end with .png, .mp4, .rrd"),
        (["--episode", "0", "--out", "no/a.png"], "the folder no does not exist"),
        (["--episode", "0", "--out", "there.png"], "there.png exists"),
    ],
)
def test_a_mistake_is_one_line(
    root: Path, here: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    (here / "there.png").write_text("mine")
    assert message in _error(capsys, str(root), *options)
    assert [p.name for p in here.iterdir()] == ["there.png"]


def test_an_episode_in_quarantine_is_not_shown(
    make_datasets: ModuleType, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_datasets.make(here / "broken", make_datasets.Spec("v2.1", episodes=3, length="5", codec="h264"))
    next((here / "broken").rglob(f"{TOP}/episode_000001.mp4")).unlink()
    assert "episode 1 cannot be shown: partial_download" in _error(capsys, "broken", "--episode", "1")
    assert "those that can be read are 0 to 2 (2 of them)" in _error(capsys, "broken", "--episode", "3")
