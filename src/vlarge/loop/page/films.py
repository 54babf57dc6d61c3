"""Rollouts inside the page: mp4 files as data, as many as the page may weigh."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vlarge.contracts import EpisodeKey
from vlarge.evaluate.episode import FAILURE, SUCCESS
from vlarge.evaluate.film import film_name
from vlarge.loop.page import wording
from vlarge.loop.page.facts import Evaluation
from vlarge.loop.page.markup import Html, tag

MAX_VIDEO_BYTES = 24_000_000  # of mp4 in one page; as text in the page they take a third more

MARKS = {SUCCESS: "✓", FAILURE: "✕"}

Film = tuple[Path, EpisodeKey | None]  # None: no result tells of this episode


def video_section(evaluations: Sequence[Evaluation], max_bytes: int = MAX_VIDEO_BYTES) -> Html | None:
    """The films of each evaluation by task, the first one's in sight; None when there are none."""
    left_bytes = max_bytes
    groups: list[Html] = []
    left_out: list[int] = []
    for evaluation in evaluations:
        shown: dict[str, list[Film]] = {}
        for task, film in _in_turn(evaluation):
            num_bytes = film[0].stat().st_size
            if num_bytes > left_bytes:
                left_out.append(num_bytes)
                continue
            left_bytes -= num_bytes
            shown.setdefault(task, []).append(film)
        if shown:
            groups.append(_group(evaluation, shown, is_open=not groups))
    if not groups and not left_out:
        return None
    return tag("section", tag("h2", "Rollouts"), *groups, *_left_out_note(left_out), id="rollouts")


def _in_turn(evaluation: Evaluation) -> list[tuple[str, Film]]:
    """Each task's first film, then each task's second one…: a page that cannot hold all shows every task."""
    keys = {film_name(key): key for key in evaluation.outcomes}
    by_task: dict[str, list[tuple[str, Film]]] = {}
    for path in evaluation.videos:
        key = keys.get(path.name)
        task = key.task if key else path.stem
        by_task.setdefault(task, []).append((task, (path, key)))
    return [film for films in zip_longest(*by_task.values()) for film in films if film is not None]


def _group(evaluation: Evaluation, shown: Mapping[str, Sequence[Film]], *, is_open: bool) -> Html:
    tasks = [_task(task, films, evaluation) for task, films in sorted(shown.items())]
    is_single = max(map(len, shown.values())) == 1
    grid = tag("div", *tasks, class_="tasks single" if is_single else "tasks")
    title = f"The {evaluation.name} policy, {wording.count(sum(map(len, shown.values())), 'episode')}"
    if is_open:
        return tag("div", tag("p", title, class_="note"), grid)
    return tag("details", tag("summary", title), grid)


def _task(task: str, films: Sequence[Film], evaluation: Evaluation) -> Html:
    heads = [tag("h3", wording.short_task(task)), tag("p", evaluation.instructions.get(task, ""), class_="sub")]
    cards = [_card(*film, task, evaluation.outcomes) for film in films]
    return tag("div", *heads, tag("div", *cards, class_="films"))


def _card(path: Path, key: EpisodeKey | None, task: str, outcomes: Mapping[EpisodeKey, Mapping[str, Any]]) -> Html:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    line = outcomes[key] if key else {}
    outcome = str(line.get("outcome", "no result"))
    steps = wording.count(line["num_steps"], "step") if line.get("num_steps") else ""
    badge = f"{MARKS.get(outcome, '')} {outcome}".strip()
    where = f"init {key.init_id} · seed {key.seed}" if key else ""
    film = tag(
        "video", src=f"data:video/mp4;base64,{data}", controls=True, muted=True, loop=True, playsinline=True,
        preload="metadata", aria_label=" · ".join(filter(None, (wording.short_task(task), where, outcome))),
    )  # fmt: skip
    caption = tag("figcaption", tag("b", badge), " ", tag("span", steps), tag("span", where, class_="key"))
    return tag("figure", film, caption, class_=f"film {outcome}")


def _left_out_note(left_out: Sequence[int]) -> list[Html]:
    if not left_out:
        return []
    films = wording.count(len(left_out), "video")
    text = f"{films} ({wording.size(sum(left_out))}) left out to keep this page small: see the eval folder of the run."
    return [tag("p", text, class_="note")]
