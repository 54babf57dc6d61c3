"""What the run achieved: the verdict in a sentence, and success rates with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
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
        return _gate(facts.gate, _baseline_name(facts))
    if facts.candidate:
        summary, name = facts.candidate.summary, facts.candidate.name
        return tag("section", tag("h1", f"The {name} policy succeeds in {_counts(summary)}."), _rate_line(summary))
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


def _gate(gate: Mapping[str, Any], baseline_name: str) -> Html:
    verdict = gate["verdict"]
    if verdict not in WORDS:
        raise InputError(f"the gate's verdict is {verdict!r}, which is none of {', '.join(WORDS)}")
    badge = tag("p", tag("span", SIGNS[verdict], aria_hidden="true"), WORDS[verdict], class_=f"verdict {verdict}")
    candidate, baseline = gate["candidate"], gate["baseline"]
    tail = ": too close to tell which is better." if verdict == UNDECIDED else "."
    sentence = (
        f"The trained policy succeeds in {_counts(candidate)}, the {baseline_name} one in {baseline['num_success']}{tail}"
    )
    head = tag("h1", sentence)
    return tag("section", badge, head, *_reasons(gate, baseline_name), class_="hero")


def _reasons(gate: Mapping[str, Any], baseline_name: str) -> list[Html]:
    """Why: the rates with intervals, the discordant pairs, and how probable they were by chance."""
    candidate_only, baseline_only = gate["discordant"]
    alike = gate["num_pairs"] - candidate_only - baseline_only
    better = "worse" if gate["verdict"] == REJECT else "better"
    pairs = [
        Part("only the trained policy succeeded", candidate_only, "candidate"),
        Part("both ended alike", alike, "alike"),
        Part(f"only the {baseline_name} policy succeeded", baseline_only, "reject"),
    ]
    entries = [tag("li", swatch(part.style), tag("b", f"{part.value:,}"), f" {part.label}") for part in pairs]
    sentence = (
        f"Both policies played the same {wording.count(gate['num_pairs'], 'episode')}. If they were equally good,"
        f" discordant pairs that favour “{better}” at least this clearly would come up with probability"
    )
    decided = f"p = {wording.probability(gate['p_value'])}"
    limit = f" ({gate['test']}; the gate decides at {gate['alpha']:g} or below)."
    more = " More episodes may decide it." if gate["verdict"] == UNDECIDED else ""
    return [
        _rate_line(gate["candidate"], gate["baseline"], baseline_name),
        stacked_bar("pairs", "Paired episodes", pairs),
        tag("ul", *entries, class_="legend"),
        tag("p", sentence, " ", tag("b", decided), limit, more, class_="note"),
    ]


def _rate_line(
    candidate: Mapping[str, Any], baseline: Mapping[str, Any] | None = None, baseline_name: str = "baseline"
) -> Html:
    sides = [("Success rate", candidate)] + ([(f"{baseline_name.capitalize()}", baseline)] if baseline else [])
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
        Rate(result["success_rate"], *result["wilson95"], _style(side, candidate))
        for side, result in results
        if result and result["success_rate"] is not None
    ]
    instruction = "" if task is None else candidate.instructions.get(task, "")
    name = tag("th", title, *([tag("span", instruction, class_="sub")] if instruction else []), scope="row")
    slug = "rates-all" if task is None else f"rates-{list(candidate.summary['tasks']).index(task)}"
    cells = [_cell(side.name, result) for side, result in results]
    return tag("tr", name, tag("td", rate_bars(slug, title, rates), class_="bars"), *cells, class_="all" if task is None else None)


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
    return tag("td", side, tag("span", *parts, class_="rate"), tag("span", ", ".join(remarks), class_="sub"))


def _style(side: Evaluation, candidate: Evaluation) -> str:
    return "candidate" if side is candidate else "baseline"


def _baseline_name(facts: RunFacts) -> str:
    is_untrained = facts.baseline is not None and facts.baseline.step == BASELINE_STEP
    return "untrained" if is_untrained else "baseline"


def _counts(result: Mapping[str, Any]) -> str:
    return f"{result['num_success']} of {wording.count(result['num_episodes'], 'episode')}"
