"""How the run was trained: curves, speed, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vlarge.loop.page import wording
from vlarge.loop.page.charts import Line, Part, line_chart, stacked_bar, swatch, window_of
from vlarge.loop.page.facts import RunFacts
from vlarge.loop.page.markup import Html, tag

STEP_PARTS = {
    "data_wait_s": ("waiting for data", "wait"),
    "forward_s": ("forward", "hue-1"),
    "backward_s": ("backward", "hue-2"),
    "optimizer_s": ("optimizer", "hue-3"),
}
STAGE_HUES = ("hue-1", "hue-2", "hue-3", "hue-4", "hue-5")
LEAST_TRAINED = 0.5  # of the planned steps, for a verdict that means something
LEAST_REST = 0.005  # a smaller unmeasured share is not worth a line


def training_section(facts: RunFacts) -> Html | None:
    """Key figures, the loss, and learning rate, speed and gradient norm beside one another."""
    steps = facts.steps
    if not len(steps.get("loss", ())):
        return None
    x, window = steps["step"], window_of(len(steps["step"]))
    loss = Line("loss", "Loss", x, steps["loss"], log=True, height_px=240)
    small = [
        Line(name, title, x, steps[name], note, log=log, noisy=noisy)
        for name, title, note, log, noisy in (
            ("lr", "Learning rate", "", False, False),
            ("samples_per_s", "Throughput", "samples/s", False, True),
            ("grad_norm", "Gradient norm", "before clipping", True, True),
        )
        if name in steps
    ]
    note = f"Faint: every step. Line: mean of the {window} steps around it." if window > 1 else ""
    multiples = tag("div", *map(line_chart, small), class_="multiples")
    blocks = [*_cut_short(facts), _figures(steps), tag("p", note, class_="note"), line_chart(loss), multiples]
    return tag("section", tag("h2", "Training"), *blocks, id="training")


def _cut_short(facts: RunFacts) -> list[Html]:
    # A loop has a time to end in; where little of the training fits, its verdict is the machine's.
    done, planned = facts.steps["step"][-1], (facts.demo or {}).get("planned_steps", 0)
    if not isinstance(planned, int) or done >= LEAST_TRAINED * planned:
        return []
    of = f"{wording.number(done)} of {wording.number(planned)} steps"
    return [
        tag("p", tag("b", f"Cut short: {of}"), ", all that this machine had time for. It says little of the method.")
    ]


def time_section(facts: RunFacts) -> Html | None:
    """The stages of the whole loop, and the parts of a training step."""
    blocks = []
    if facts.demo:
        stages = facts.demo["stages_s"]
        parts = [Part(name, value, STAGE_HUES[i % len(STAGE_HUES)]) for i, (name, value) in enumerate(stages.items())]
        whole_s = max(float(facts.demo["loop_s"]), sum(stages.values()))
        blocks.append(_split("stages", "The whole loop", _with_rest(parts, whole_s), num=1))
    sums_s = {name: float(np.nansum(facts.steps[name])) for name in ("step_s", *STEP_PARTS) if name in facts.steps}
    parts = [Part(label, sums_s[name], hue) for name, (label, hue) in STEP_PARTS.items() if name in sums_s]
    if parts and "step_s" in sums_s:
        num_steps = len(facts.steps["step_s"])
        blocks.append(_split("step", "A training step", _with_rest(parts, sums_s["step_s"]), num=num_steps))
    if not blocks:
        return None
    return tag("section", tag("h2", "Where the time went"), tag("div", *blocks, class_="pair"), id="time")


def _figures(steps: Mapping[str, np.ndarray]) -> Html:
    window = window_of(len(steps["loss"]))
    figures = [
        ("Steps", wording.number(steps["step"][-1])),
        (f"Loss, last {wording.count(window, 'step')}", wording.number(_tail_mean(steps["loss"], window))),
        ("Samples per second", wording.number(_median(steps, "samples_per_s"))),
        ("Waiting for data", wording.percent(_wait_share(steps), 1)),
        ("Model FLOP utilisation", wording.percent(_median(steps, "mfu"))),
        ("Peak memory", wording.size(_most(steps, "memory_bytes"))),
        ("Real tokens", wording.percent(_median(steps, "real_token_fraction"))),
    ]
    known = [(name, value) for name, value in figures if value != wording.UNKNOWN]
    return tag("dl", *(tag("div", tag("dt", n), tag("dd", tag("b", v))) for n, v in known), class_="figures small")


def _wait_share(steps: Mapping[str, np.ndarray]) -> float | None:
    if "data_wait_s" not in steps or "step_s" not in steps:
        return None
    total_s = float(np.nansum(steps["step_s"]))
    return float(np.nansum(steps["data_wait_s"])) / total_s if total_s else None


def _with_rest(parts: Sequence[Part], whole: float) -> list[Part]:
    rest = whole - sum(part.value for part in parts)
    return [*parts, *([Part("rest", rest, "alike")] if rest > LEAST_REST * whole else [])]


def _split(name: str, title: str, parts: Sequence[Part], *, num: int) -> Html:
    """A bar and its legend; seconds are divided by `num`."""
    whole_s = sum(part.value for part in parts)
    mean = f" on average, {wording.duration(whole_s)} in {wording.count(num, 'step')}" if num > 1 else ""
    rows = [
        tag(
            "tr",
            tag("th", swatch(part.style), part.label, scope="row"),
            tag("td", wording.duration(part.value / num)),
            tag("td", wording.percent(part.value / whole_s if whole_s else None, 1)),
        )
        for part in parts
    ]
    caption = tag("figcaption", tag("b", title), " ", tag("span", f"{wording.duration(whole_s / num)}{mean}"))
    return tag("figure", caption, stacked_bar(name, title, parts), tag("table", *rows, class_="split"))


def _tail_mean(values: np.ndarray, num_steps: int) -> float | None:
    tail = values[-num_steps:]
    tail = tail[np.isfinite(tail)]
    return float(tail.mean()) if len(tail) else None


def _median(steps: Mapping[str, np.ndarray], name: str) -> float | None:
    values = steps.get(name, np.array([]))
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else None


def _most(steps: Mapping[str, np.ndarray], name: str) -> float | None:
    values = steps.get(name, np.array([]))
    return float(np.nanmax(values)) if np.isfinite(values).any() else None
