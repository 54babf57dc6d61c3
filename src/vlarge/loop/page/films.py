"""Rollouts inside the page: mp4 files as data, as many as the page may weigh."""

from __future__ import annotations

import base64
from collections import defaultdict
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

MARKS = {SUCCESS: "✓ success", FAILURE: "✕ failure"}


def video_section(evaluations: Sequence[Evaluation], max_bytes: int = MAX_VIDEO_BYTES) -> Html | None:
    """The films of each evaluation, the first one's in sight; None when there are none."""
    left_bytes, groups, left_out = max_bytes, [], []
    for evaluation in evaluations:
        cards = {}
        for path, key in _in_turn(evaluation):
            num_bytes = path.stat().st_size
            if num_bytes > left_bytes:
                left_out.append(num_bytes)
                continue
            left_bytes -= num_bytes
            cards[key or EpisodeKey(path.stem, 0, 0)] = _card(path, key, evaluation.outcomes)
        if cards:
            groups.append(_group(evaluation, [cards[key] for key in sorted(cards)], is_open=not groups))
    if not groups and not left_out:
        return None
    return tag("section", tag("h2", "Rollouts"), *groups, *_left_out_note(left_out), id="rollouts")


def _in_turn(evaluation: Evaluation) -> list[tuple[Path, EpisodeKey | None]]:
    """Each task's first film, then each task's second one…: a page that cannot hold all shows every task."""
    keys = {film_name(key): key for key in evaluation.outcomes}
    by_task = defaultdict(list)
    for path in evaluation.videos:
        key = keys.get(path.name)
        by_task[key.task if key else ""].append((path, key))
    rounds = zip_longest(*by_task.values())
    return [film for films in rounds for film in films if film is not None]


def _group(evaluation: Evaluation, cards: list[Html], *, is_open: bool) -> Html:
    grid = tag("div", *cards, class_="films")
    title = f"The {evaluation.name} policy: {wording.count(len(cards), 'episode')}"
    if is_open:
        return tag("div", tag("p", title, class_="note"), grid)
    return tag("details", tag("summary", title), grid)


def _card(path: Path, key: EpisodeKey | None, outcomes: Mapping[EpisodeKey, Mapping[str, Any]]) -> Html:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    line = outcomes[key] if key else {}
    outcome = str(line.get("outcome", "unknown"))
    task = wording.short_task(key.task) if key else path.stem
    where = f"init {key.init_id} · seed {key.seed}" if key else "no result of this episode"
    steps = wording.count(line["num_steps"], "step") if line.get("num_steps") else ""
    film = tag(
        "video", src=f"data:video/mp4;base64,{data}", controls=True, muted=True, loop=True, playsinline=True,
        preload="metadata", aria_label=f"{task}, {where}, {outcome}",
    )  # fmt: skip
    caption = tag(
        "figcaption",
        tag("span", tag("b", task), tag("span", MARKS.get(outcome, outcome), class_=f"badge {outcome}"), class_="line"),
        tag("span", " · ".join(filter(None, (where, steps))), class_="key"),
    )
    return tag("figure", film, caption, class_=f"film {outcome}")


def _left_out_note(left_out: Sequence[int]) -> list[Html]:
    if not left_out:
        return []
    films = wording.count(len(left_out), "video")
    text = f"{films} ({wording.size(sum(left_out))}) left out to keep this page small: see the eval folder of the run."
    return [tag("p", text, class_="note")]
