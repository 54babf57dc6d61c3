"""report.html: complete, self-contained, escaped, and honest about what it leaves out."""

import base64
import hashlib
import html
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlarge import recipe as recipes
from vlarge.contracts import EnvSpec, EpisodeKey, InputError, Observation
from vlarge.evaluate.film import Film, film_name
from vlarge.evaluate.plan import EvaluationPlan
from vlarge.evaluate.stats import wilson
from vlarge.evaluate.summary import summarize
from vlarge.evaluate.verdict import gate
from vlarge.loop.page.facts import read_run
from vlarge.loop.page.films import video_section
from vlarge.loop.report import write_report
from vlarge.sim.config import SimConfig

TASKS = ("metaworld/door-open-v3", "metaworld/reach-v3")
HOSTILE = '<script>alert(\'1\')</script>"><img src=x onerror="alert(2)">&amp;'
VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """The page as a browser reads it: elements with attributes, and text by element. Raises on bad nesting."""

    def __init__(self, page: Path | str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.read_text(encoding="utf-8") if isinstance(page, Path) else page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data.replace("\u00a0", " ")

    def all(self, tag: str, class_: str = "") -> list[dict[str, str | None]]:
        return [
            a for name, a in self.elements if name == tag and (not class_ or class_ in (a.get("class") or "").split())
        ]


def spec(task: str, instruction: str) -> EnvSpec:
    return EnvSpec(
        task=task, instruction=instruction, cameras={"observation.images.close": (16, 16)}, state_names=("x",),
        action_names=("dx",), action_low=(-1.0,), action_high=(1.0,), action_convention="delta", control_hz=80.0,
        horizon=300, metric="success_once", render_quality="fast", reset_mode="seeded",
        simulator="metaworld 3.1.1",
    )  # fmt: skip


def write_steps(run_dir: Path, num_steps: int = 200) -> None:
    timings = {"step_s": 0.4, "data_wait_s": 0.04, "forward_s": 0.1, "backward_s": 0.2, "optimizer_s": 0.02}
    with (run_dir / "steps.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            record = {"step": step, "loss": 2.0 * 0.98**step, "grad_norm": 1.0, "lr": 1e-3, "samples_per_s": 80.0}
            file.write(json.dumps({**record, **timings, "mfu": 0.4, "memory_bytes": 1_100_000_000}) + "\n")


def write_recipe(run_dir: Path) -> None:
    (run_dir / "recipe.toml").write_text(recipes.dump(recipes.load([], {"train.batch_size": 32})))


def write_evaluation(folder: Path, num_success: dict[str, int], instruction: str = "do it", num_films: int = 1) -> None:
    """Ten keys per task, of which the first `num_success` succeed; each task's last `num_films` keys are filmed."""
    keys = tuple(sorted(EpisodeKey(task, init_id, 0) for task in num_success for init_id in range(10)))
    plan = EvaluationPlan(keys, {task: spec(task, instruction) for task in num_success}, SimConfig(), replan=4)
    lines = []
    for key in keys:
        won = key.init_id < num_success[key.task]
        outcome = {
            "outcome": "success" if won else "failure",
            "num_steps": 77 if won else 300,
            "success_at_reset": False,
        }
        lines.append({**key._asdict(), **outcome})
        if key.init_id >= 10 - num_films:
            write_film(folder / "videos" / film_name(key), key.init_id)
    folder.mkdir(parents=True, exist_ok=True)
    plan.save(folder / "plan.json")
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summarize(lines, plan, f"checkpoints/{folder.name}")))


def write_film(path: Path, shade: int) -> None:
    film = Film()
    for step in (0, 4):
        picture = np.full((16, 16, 3), shade, dtype=np.uint8)
        film.watch(step, lambda picture=picture: Observation({"close": picture}, np.zeros(1), ""))
    film.save(path, 80.0)


def write_demo(run_dir: Path, **more: int) -> None:
    stages_s = {"record": 60.0, "train": 240.0, "evaluate": 42.0}
    result = {"seed": 3, "success_rate": 0.75, "verdict": "promote", "loop_s": 402.0, "stages_s": stages_s} | more
    (run_dir / "demo.json").write_text(json.dumps(result))


def write_dataset(run_dir: Path) -> None:
    camera = {"dtype": "video", "shape": [96, 128, 3], "names": ["height", "width", "channels"]}
    state = {"dtype": "float32", "shape": [39], "names": [f"state_{i}" for i in range(39)]}
    info = {
        "codebase_version": "v3.0", "robot_type": "metaworld", "total_episodes": 150, "total_frames": 12000, "fps": 80,
        "features": {"observation.images.close": camera, "observation.state": state},
    }  # fmt: skip
    (run_dir / "data/meta").mkdir(parents=True)
    (run_dir / "data/meta/info.json").write_text(json.dumps(info))


def write_gate(run_dir: Path, alpha: float = 0.05) -> None:
    (run_dir / "gate").mkdir(exist_ok=True)
    verdict = gate(run_dir / "eval/00000000", run_dir / "eval/00000200", alpha)
    (run_dir / "gate/00000200.json").write_text(json.dumps(verdict))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every part: 15 of 20 succeed after training, 1 of 20 before."""
    run_dir = tmp_path_factory.mktemp("demo")
    write_recipe(run_dir)
    write_steps(run_dir)
    write_evaluation(run_dir / "eval/00000000", dict(zip(TASKS, (1, 0), strict=True)))
    write_evaluation(run_dir / "eval/00000200", dict(zip(TASKS, (10, 5), strict=True)), num_films=2)
    write_gate(run_dir)
    write_demo(run_dir)
    write_dataset(run_dir)
    return run_dir


@pytest.fixture
def run_dir(whole_run: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return shutil.copytree(whole_run, tmp_path / "demo")


def test_the_page_says_the_verdict_first(run_dir: Path) -> None:
    page = Page(write_report(run_dir))
    head = page.text[: page.text.index("Success by task")]
    assert "Promoted" in head
    assert "The trained policy succeeds in 15 of 20 episodes, the untrained one in 1." in head
    assert "14 only the trained policy succeeded" in head
    assert "0 only the untrained policy succeeded" in head
    assert "p = 6.1 × 10⁻⁵" in head  # 2^-14
    assert "75%" in head


def test_a_worse_policy_is_rejected_and_a_like_one_undecided(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "eval/00000200")
    write_evaluation(run_dir / "eval/00000200", dict(zip(TASKS, (3, 0), strict=True)), num_films=0)
    write_gate(run_dir)
    undecided = Page(write_report(run_dir)).text
    assert "Undecided" in undecided
    assert "More episodes may decide it." in undecided
    baseline = run_dir / "eval/00000000"
    shutil.rmtree(baseline)
    write_evaluation(baseline, dict(zip(TASKS, (10, 8), strict=True)), num_films=0)
    write_gate(run_dir)
    rejected = Page(write_report(run_dir)).text
    assert "Rejected" in rejected
    assert "favours the untrained policy by 15 to 0" in rejected


def test_bars_and_whiskers_stand_where_rate_and_interval_are(run_dir: Path) -> None:
    page = Page(write_report(run_dir))
    widths = [attributes["width"] for attributes in page.all("rect", "candidate") if attributes.get("y") != "0"]
    assert {"100.00%", "50.00%", "75.00%"} <= set(widths)
    low, high = (f"{100 * bound:.2f}%" for bound in wilson(5, 10))
    assert (low, high) in [(line["x1"], line["x2"]) for line in page.all("line", "whisker")]
    assert "50% 5/10" in page.text
    assert "door-open-v3" in page.text
    assert "All tasks" in page.text


def test_videos_are_embedded_whole_with_their_outcome(run_dir: Path) -> None:
    page = Page(write_report(run_dir))
    videos = page.all("video")
    files = sorted((run_dir / "eval").rglob("*.mp4"))
    assert len(files) == 6
    embedded = {base64.b64decode((video["src"] or "").removeprefix("data:video/mp4;base64,")) for video in videos}
    assert embedded == {path.read_bytes() for path in files}
    assert all({"muted", "loop", "playsinline", "controls"} <= video.keys() for video in videos)
    assert {video["preload"] for video in videos} == {"metadata"}
    assert len(page.all("figure", "failure")) == 2 + 2  # keys 8 and 9 of reach; key 9 of both before training
    assert "✕ failure 300 steps" in page.text
    assert "init 9 · seed 0" in page.text


def test_videos_beyond_the_budget_are_left_out_and_counted(run_dir: Path) -> None:
    """Each task's first film goes in before any task's second."""
    facts = read_run(run_dir)
    assert facts.candidate
    assert facts.baseline
    first = [path for path in facts.candidate.videos if "-0008-" in path.name]
    budget = sum(path.stat().st_size for path in first)
    section = video_section([facts.candidate, facts.baseline], max_bytes=budget)
    page = Page(section or "")
    labels = [video["aria-label"] for video in page.all("video")]
    assert labels == ["door-open-v3 · init 8 · seed 0 · success", "reach-v3 · init 8 · seed 0 · failure"]
    assert re.search(r"4 videos \(\S+ kB\) left out", page.text)


def test_time_is_split_into_stages_and_parts_of_a_step(run_dir: Path) -> None:
    text = Page(write_report(run_dir)).text
    times = text[text.index("Where the time went") :]
    assert "6 min 42 s" in times
    for label, time_, share in (
        ("train", "4 min 0 s", "59.7%"),
        ("rest", "1 min 0 s", "14.9%"),
        ("waiting for data", "40 ms", "10.0%"),
        ("backward", "200 ms", "50.0%"),
        ("rest", "40 ms", "10.0%"),
    ):
        assert f"{label}{time_}{share}" in times


def test_protocol_data_and_recipe_are_there(run_dir: Path) -> None:
    page = Page(write_report(run_dir))
    entries = page.text[page.text.index("Protocol and settings") :]
    for entry in ("Seeds0", "Initial states0–9", "Horizon300 steps", "Render qualityfast", "Simulatormetaworld 3.1.1"):
        assert entry in entries
    assert "Camerasclose 128×96" in entries
    assert "State39 values" in entries
    assert (run_dir / "recipe.toml").read_text().strip() in page.text


def test_the_page_loads_nothing_and_its_policy_forbids_it(run_dir: Path) -> None:
    path = write_report(run_dir)
    page = Page(path)
    links = [value for _, a in page.elements for key, value in a.items() if key in ("src", "href", "action", "srcset")]
    assert links
    assert all((link or "").startswith("data:") for link in links)
    assert not page.all("script") + page.all("link") + page.all("iframe")
    content = next(a["content"] or "" for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    text = path.read_text(encoding="utf-8")
    css = text[text.index("<style>") + len("<style>") : text.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert content.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}';" in content
    assert "url(" not in css
    assert "@import" not in css
    assert not any("style" in attributes for _, attributes in page.elements)  # the policy would drop them


def test_drawings_have_a_title_and_a_description(run_dir: Path) -> None:
    page = Page(write_report(run_dir))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawings = [svg for svg in page.all("svg") if svg.get("role") == "img"]
    assert len(drawings) == 1 + 3 + 4 + 2  # pairs, rates, curves, time
    assert all(set((svg["aria-labelledby"] or "").split()) <= set(ids) for svg in drawings)


def test_strings_of_others_stay_text(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    task = f"sim/{HOSTILE}"
    write_evaluation(run_dir / "eval/00000200", {task: 3}, HOSTILE)
    videos = run_dir / "eval/00000200/videos"
    write_film(videos / "<b onclick=alert(3)>.mp4", 0)
    hostile_toml = json.dumps(HOSTILE)
    (run_dir / "recipe.toml").write_text(f"[model]\nname = {hostile_toml}\n[data]\npath = {hostile_toml}\n")
    info: dict[str, Any] = {"robot_type": HOSTILE, "features": {HOSTILE: {"dtype": "video", "shape": [4, 4, 3]}}}
    (run_dir / "data/meta").mkdir(parents=True)
    (run_dir / "data/meta/info.json").write_text(json.dumps(info))
    (run_dir / "demo.json").write_text(json.dumps({"loop_s": 1.0, "stages_s": {HOSTILE: 1.0}, "seed": HOSTILE}))
    page = Page(write_report(run_dir))
    assert not page.all("script") + page.all("img")
    assert not [a for _, a in page.elements if any(key.startswith("on") for key in a)]
    # As instruction, model, robot, camera, stage and seed; the recipe's text has its own escapes.
    assert page.text.count(HOSTILE) >= 6
    assert html.escape("<b onclick=alert(3)>") in (run_dir / "report.html").read_text(encoding="utf-8")


def test_a_plain_training_run_has_a_page(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    write_steps(tmp_path, num_steps=3)
    page = Page(write_report(tmp_path))
    assert "Trained for 3 steps; not evaluated yet." in page.text
    assert "Rollouts" not in page.text
    assert "Protocol" in page.text


PARTS: dict[str, Callable[[Path], None]] = {
    "recipe.toml": lambda run_dir: (run_dir / "recipe.toml").unlink(),
    "steps.jsonl": lambda run_dir: (run_dir / "steps.jsonl").unlink(),
    "eval": lambda run_dir: shutil.rmtree(run_dir / "eval"),
    "baseline": lambda run_dir: shutil.rmtree(run_dir / "eval/00000000"),
    "videos": lambda run_dir: shutil.rmtree(run_dir / "eval/00000200/videos"),
    "plan": lambda run_dir: (run_dir / "eval/00000200/plan.json").unlink(),
    "episodes": lambda run_dir: (run_dir / "eval/00000200/episodes.jsonl").unlink(),
    "gate": lambda run_dir: shutil.rmtree(run_dir / "gate"),
    "demo.json": lambda run_dir: (run_dir / "demo.json").unlink(),
    "data": lambda run_dir: shutil.rmtree(run_dir / "data"),
}


@pytest.mark.parametrize("part", PARTS)
def test_an_absent_part_is_left_out(run_dir: Path, part: str) -> None:
    PARTS[part](run_dir)
    assert Page(write_report(run_dir)).all("section")


@pytest.mark.parametrize("part", PARTS)
def test_one_part_alone_makes_a_page_or_is_no_run(run_dir: Path, part: str) -> None:
    for other in ("recipe.toml", "steps.jsonl", "eval", "gate", "demo.json", "data"):
        if other != part:
            PARTS[other](run_dir)
    if (run_dir / part).exists():
        assert Page(write_report(run_dir)).all("h1")
    else:
        with pytest.raises(InputError, match="holds no run"):
            write_report(run_dir)


def test_without_a_gate_the_success_rate_comes_first(run_dir: Path) -> None:
    PARTS["gate"](run_dir)
    assert "The trained policy succeeds in 15 of 20 episodes." in Page(write_report(run_dir)).text


def test_an_unfinished_evaluation_is_not_shown(run_dir: Path) -> None:
    (run_dir / "eval/00000300").mkdir()
    (run_dir / "eval/00000300/attempts.jsonl").write_text("{}")
    assert "15 of 20" in Page(write_report(run_dir)).text


def test_a_half_written_last_step_is_not_counted(tmp_path: Path) -> None:
    write_steps(tmp_path, num_steps=30)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 31, "lo')
    assert "Trained for 30 steps" in Page(write_report(tmp_path)).text


def test_a_loss_that_is_not_finite_is_a_gap_that_is_named(tmp_path: Path) -> None:
    records = [{"step": step, "loss": float("nan") if step in (40, 41) else 1.0} for step in range(1, 81)]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page = Page(write_report(tmp_path))
    assert "2 steps not finite" in page.text
    assert "Waiting for data" not in page.text  # it was not measured
    assert "Where the time went" not in page.text
    (raw,) = page.all("path", "raw")
    assert (raw["d"] or "").count("M") == 2
    assert "nan" not in (raw["d"] or "")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("demo.json", "{", "cannot be read"),
        ("demo.json", '{"seed": 0}', "it has no stages_s, loop_s"),
        ("eval/00000200/summary.json", "[]", "it has no metric"),
        ("gate/00000200.json", '{"verdict": "promote"}', "it has no p_value"),
        ("steps.jsonl", "no json\n", "cannot be read"),
        ("recipe.toml", "[", "cannot be read"),
        ("data/meta/info.json", '{"features": {"a": {"shape": 3}}}', "no list"),
    ],
)
def test_a_broken_file_is_named_and_the_old_page_stays(run_dir: Path, name: str, text: str, complaint: str) -> None:
    (run_dir / "report.html").write_text("old")
    (run_dir / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(str(run_dir / name))) as caught:
        write_report(run_dir)
    assert complaint in str(caught.value)
    assert (run_dir / "report.html").read_text() == "old"


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run directory at"):
        write_report(tmp_path / "absent")


def test_the_page_is_written_whole_or_not_at_all(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(run_dir)
    before = (run_dir / "report.html").read_bytes()
    names = sorted(path.name for path in run_dir.iterdir())

    def full(self: Path, *args: object, **kwargs: object) -> None:
        self.write_bytes(b"half a page")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_report(run_dir)
    assert (run_dir / "report.html").read_bytes() == before
    assert sorted(path.name for path in run_dir.iterdir()) == names


def test_the_page_is_a_function_of_the_run(run_dir: Path) -> None:
    first = write_report(run_dir).read_bytes()
    assert write_report(run_dir).read_bytes() == first


@pytest.mark.parametrize(("planned", "is_told"), [(10_000, True), (300, False), (0, False)])
def test_a_training_cut_short_is_told(planned: int, is_told: bool, run_dir: Path) -> None:
    write_demo(run_dir, planned_steps=planned)
    assert ("Cut short" in write_report(run_dir).read_text()) == is_told
