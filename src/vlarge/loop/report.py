"""report.html: one self-contained page about a run. It loads nothing, runs no script, and opens in any browser."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from vlarge import __version__
from vlarge.contracts import InputError
from vlarge.loop.page.facts import RunFacts, read_run
from vlarge.loop.page.films import video_section
from vlarge.loop.page.markup import Html, join, style, tag
from vlarge.loop.page.protocol import reproduction_section
from vlarge.loop.page.results import results_section, verdict_section
from vlarge.loop.page.training import time_section, training_section
from vlarge.loop.page.wording import duration


def write_report(run_dir: Path) -> Path:
    """Write `run_dir`/report.html from what the run directory holds so far; returns its path.

    The page is a function of these files, and is replaced whole or not at all. Raises InputError when there is no run,
    a file of it is broken, or the page cannot be written.
    """
    page = render(read_run(run_dir))
    path = run_dir / "report.html"
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    return path


def render(facts: RunFacts) -> str:
    """The whole page."""
    css = files("vlarge.loop.page").joinpath("report.css").read_text(encoding="utf-8")
    title = f"{facts.name} · vlarge"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_content_security_policy(css)),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        style(css),
    )
    body = tag("body", _header(facts), tag("main", *_sections(facts)), _footer())
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _sections(facts: RunFacts) -> list[Html]:
    """From what was decided to how it can be obtained again; a part that the run does not have is left out."""
    judged = [side for side in (facts.candidate, facts.baseline) if side]
    sections = [
        verdict_section(facts),
        results_section(facts.candidate, facts.baseline) if facts.candidate else None,
        video_section(judged),
        training_section(facts),
        time_section(facts),
        reproduction_section(facts),
    ]
    return [section for section in sections if section]


def _header(facts: RunFacts) -> Html:
    model, train = facts.recipe.get("model", {}), facts.recipe.get("train", {})
    remarks = [" ".join(str(model[key]) for key in ("name", "preset") if model.get(key))]
    if "batch_size" in train:
        remarks.append(f"batch of {train['batch_size']}")
    if facts.demo:
        remarks += [f"seed {facts.demo['seed']}"] if "seed" in facts.demo else []
        remarks.append(f"the loop took {duration(facts.demo['loop_s'])}")
    line = join([tag("b", facts.name), *(tag("span", remark) for remark in remarks if remark)])
    return tag("header", line)


def _footer() -> Html:
    return tag("footer", f"Written by vlarge {__version__}. This page loads nothing from a network.")


def _content_security_policy(css: str) -> str:
    """Nothing is loaded or run; only this very style sheet and data inside the page count."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; media-src data:; base-uri 'none';"
        " form-action 'none'"
    )
