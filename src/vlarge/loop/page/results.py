"""What the run achieved: the verdict in a sentence, and success rates with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlarge.contracts import InputError
from vlarge.evaluate.verdict import PROMOTE, REJECT, UNDECIDED
from vlarge.loop.page import wording
from vlarge.loop.page.charts import Part, Rate, rate_axis, rate_bars, stacked_bar, swatch
from vlarge.loop.page.facts import BASELINE_STEP, Evaluation, RunFacts
from vlarge.loop.page.markup import Html, tag

WORDS = {PROMOTE: "Promoted", REJECT: "Rejected", UNDECIDED: "Undecided"}
SIGNS = {PROMOTE: "✓", REJECT: "✕", UNDECIDED: "?"}


def verdict_section(facts: RunFacts) -> Html:
    """The first thing on the page."""
    if facts.gate:
        return _gate(facts.gate)
    if facts.candidate:
        summary = facts.candidate.summary
        head = tag("h1", f"The {facts.candidate.name} policy succeeds in {_counts(summary)}.")
        return tag("section", head, _figures(("Success rate", summary)))
    if len(facts.steps.get("loss", ())):
        last = int(facts.steps["step"][-1])
        return tag("section", tag("h1", f"Trained for {wording.count(last, 'step')}; not evaluated yet."))
    return tag("section", tag("h1", "No step trained yet."))


def results_section(candidate: Evaluation, baseline: Evaluation | None) -> Html:
    """The table of success rates: per task, and in all."""
    sides = [side for side in (baseline, candidate) if side]
    heads = [tag("th", tag("span", swatch(_style(side, candidate)), side.name), scope="col") for side in sides]
    tasks = candidate.summary["tasks"]
    rows = [_row(task, sides, candidate) for task in tasks]
    if len(tasks) > 1:
        rows.append(_row(None, sides, candidate))
    metric = f"Metric {candidate.summary['metric']}: successes, rate, and 95% Wilson interval (the whiskers)."
    head = tag("tr", tag("th", "Task", scope="col"), tag("th", rate_axis(), class_="bars", scope="col"), *heads)
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="results")
    return tag("section", tag("h2", "Success by task"), tag("p", metric, class_="note"), table, id="results")


def _gate(gate: Mapping[str, Any]) -> Html:
    verdict, candidate, baseline = gate["verdict"], gate["candidate"], gate["baseline"]
    if verdict not in WORDS:
        raise InputError(f"the gate's verdict is {verdict!r}, which is none of {', '.join(WORDS)}")
    name = _baseline_name(gate)
    badge = tag("p", tag("span", SIGNS[verdict], aria_hidden="true"), WORDS[verdict], class_=f"verdict {verdict}")
    tail = ": too close to tell." if verdict == UNDECIDED else "."
    against = f"the {name} one in\u00a0{baseline['num_success']}"
    head = f"The trained policy succeeds in {_counts(candidate)}, {against}{tail}"
    figures = _figures(("Trained policy", candidate), (f"{name.capitalize()} policy", baseline))
    return tag("section", badge, tag("h1", head), figures, *_pairs(gate, name), class_="hero")


def _pairs(gate: Mapping[str, Any], baseline_name: str) -> list[Html]:
    """Why: the discordant pairs, and how probable such a split is by chance."""
    candidate_only, baseline_only = gate["discordant"]
    alike = gate["num_pairs"] - candidate_only - baseline_only
    parts = [
        Part("only the trained policy succeeded", candidate_only, "candidate"),
        Part("both ended alike", alike, "alike"),
        Part(f"only the {baseline_name} policy succeeded", baseline_only, "reject"),
    ]
    entries = [tag("li", swatch(part.style), tag("b", f"{part.value:,}"), f" {part.label}") for part in parts]
    favoured, split = "trained", f"{candidate_only} to {baseline_only}"
    if gate["verdict"] == REJECT:
        favoured, split = baseline_name, f"{baseline_only} to {candidate_only}"
    reason = tag(
        "p",
        f"Both policies played the same {wording.count(gate['num_pairs'], 'episode')}. If neither were better, a split",
        f" of discordant pairs that favours the {favoured} policy by {split} or more would come up with probability ",
        tag("b", f"p = {wording.probability(gate['p_value'])}"),
        f" ({gate['test']}; the gate decides at {gate['alpha']:g} or below).",
        " More episodes may decide it." if gate["verdict"] == UNDECIDED else "",
        class_="note",
    )
    return [stacked_bar("pairs", "Paired episodes", parts), tag("ul", *entries, class_="legend"), reason]


def _figures(*sides: tuple[str, Mapping[str, Any]]) -> Html:
    return tag("dl", *(_figure(name, side) for name, side in sides), class_="figures")


def _figure(name: str, side: Mapping[str, Any]) -> Html:
    rate = tag("b", wording.percent(side["success_rate"]))
    between = tag("span", f"95% interval {wording.interval(side['wilson95'])}")
    return tag("div", tag("dt", name), tag("dd", rate, " ", between))


def _row(task: str | None, sides: list[Evaluation], candidate: Evaluation) -> Html:
    """One task, or all of them: name, bars, and the numbers of each side."""
    results = [(side, _result(side, task)) for side in sides]
    title = "All tasks" if task is None else wording.short_task(task)
    rates = [
        _rate(result, _style(side, candidate))
        for side, result in results
        if result and result["success_rate"] is not None
    ]
    instruction = "" if task is None else candidate.instructions.get(task, "")
    name = tag("th", title, *([tag("span", instruction, class_="sub")] if instruction else []), scope="row")
    slug = "rates-all" if task is None else f"rates-{list(candidate.summary['tasks']).index(task)}"
    cells = [_cell(side.name, result) for side, result in results]
    return tag(
        "tr",
        name,
        tag("td", rate_bars(slug, title, rates), class_="bars"),
        *cells,
        class_="all" if task is None else None,
    )


def _result(side: Evaluation, task: str | None) -> dict[str, Any] | None:
    result: dict[str, Any] | None = side.summary if task is None else side.summary["tasks"].get(task)
    return result


def _cell(name: str, result: Mapping[str, Any] | None) -> Html:
    """Numbers of one side; `name` stands before them where the table is too narrow for columns."""
    side = tag("span", name, class_="side")
    if result is None:
        return tag("td", side, wording.UNKNOWN)
    num_judged = result["num_episodes"] - result["num_infra_error"]
    parts = [tag("b", wording.percent(result["success_rate"])), f" {result['num_success']}/{num_judged}"]
    remarks = [wording.interval(result["wilson95"])]
    if result["num_infra_error"]:
        remarks.append(wording.count(result["num_infra_error"], "infra error"))
    if result.get("num_success_at_reset"):
        remarks.append(f"{result['num_success_at_reset']} won at reset")
    return tag(
        "td", side, tag("span", *parts, class_="rate"), *(tag("span", remark, class_="sub") for remark in remarks)
    )


def _rate(result: Mapping[str, Any], style: str) -> Rate:
    low, high = result["wilson95"]
    return Rate(result["success_rate"], low, high, style)


def _style(side: Evaluation, candidate: Evaluation) -> str:
    return "candidate" if side is candidate else "baseline"


def _baseline_name(gate: Mapping[str, Any]) -> str:
    folder = Path(gate["baseline"].get("path", "")).name
    return "untrained" if folder.isdecimal() and int(folder) == BASELINE_STEP else "baseline"


def _counts(result: Mapping[str, Any]) -> str:
    return f"{result['num_success']}\u00a0of\u00a0{wording.count(result['num_episodes'], 'episode')}"
