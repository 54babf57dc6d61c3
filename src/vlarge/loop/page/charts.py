"""Charts as inline SVG. Widths are percentages, so text and strokes keep their size at any width of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlarge.loop.page import wording
from vlarge.loop.page.markup import Html, join, tag
from vlarge.loop.page.scales import Scale, fit, linear_ticks, smooth, thin

MAX_POINTS = 800  # per line
GUTTER_PX = 48  # left of a plot, for the ticks of its axis
FOOT_PX = 22  # below a plot
UNITS = 1000  # width of a plot in its own coordinates


@dataclass(frozen=True)
class Rate:
    """A success rate with its 95% interval; style: "baseline" or "candidate"."""

    rate: float
    low: float
    high: float
    style: str


@dataclass(frozen=True)
class Part:
    """A share of a whole; style names its colour."""

    label: str
    value: float
    style: str


@dataclass(frozen=True)
class Line:
    """A quantity by training step. log: a logarithmic scale suits it where it spans a decade; noisy: smooth it."""

    name: str
    title: str
    x: np.ndarray
    y: np.ndarray
    note: str = ""
    log: bool = False
    noisy: bool = True
    height_px: int = 130


def window_of(num_steps: int) -> int:
    """Steps that a smoothed line averages: a fortieth of all, an odd number."""
    return max(1, num_steps // 40) | 1


def line_chart(line: Line) -> Html:
    """The values; if noisy, faint, with the mean around each step over them. Caption and axes included."""
    mean = smooth(line.y, window_of(len(line.y))) if line.noisy else line.y
    y_scale = fit(line.y, log=line.log)
    x_scale = Scale(float(line.x[0]) - 1, float(line.x[-1]), False)
    paths = [("raw", line.y), ("mean", mean)] if line.noisy else [("mean", mean)]
    drawn = [_path(x_scale, y_scale, line, values, style) for style, values in paths]
    plot = tag(
        "svg", *drawn, width="100%", height=line.height_px, viewBox=f"0 0 {UNITS} {line.height_px}",
        preserveAspectRatio="none",
    )  # fmt: skip
    grid, labels = _y_axis(y_scale, line.height_px)
    notes = [line.note, "log scale" if y_scale.log else "", _gaps(line)]
    last = mean[np.isfinite(mean)]
    described = f"Steps {line.x[0]:,.0f} to {line.x[-1]:,.0f}; from {_text(last, 0)} to {_text(last, -1)}."
    full_px = line.height_px + FOOT_PX
    area = labelled_svg(
        f"line-{line.name}", line.title, described, full_px, *grid, plot, *_x_axis(x_scale, line.height_px)
    )
    gutter = tag("svg", *labels, class_="gutter", width=GUTTER_PX, height=full_px, aria_hidden="true")
    caption = tag("figcaption", tag("b", line.title), " ", tag("span", " · ".join(filter(None, notes))))
    return tag("figure", caption, tag("div", gutter, area, class_="plot"), class_="chart")


def rate_bars(name: str, title: str, rates: Sequence[Rate]) -> Html:
    """One bar per rate, from 0 to 100% of the width, with a whisker over its interval."""
    heights = [10 if rate.style == "baseline" and len(rates) > 1 else 16 for rate in rates]
    tops = [4 + sum(heights[:index]) + 5 * index for index in range(len(rates))]
    full_px = 8 + sum(heights) + 5 * (len(rates) - 1)
    grid = [_vertical(x, 0, full_px, "grid") for x in (0, 25, 50, 75, 100)]
    bars = [join(_rate_bar(rate, top, height)) for rate, top, height in zip(rates, tops, heights, strict=True)]
    described = "; ".join(
        f"{rate.style} {wording.percent(rate.rate)}, 95% interval {wording.interval((rate.low, rate.high))}"
        for rate in rates
    )
    return labelled_svg(name, title, described, full_px, *grid, *bars, class_="rates")


def rate_axis() -> Html:
    """The head of a column of `rate_bars`."""
    labels = [_x_label(x, 12, f"{x}%") for x in (0, 25, 50, 75, 100)]
    return tag("svg", *labels, class_="rates", width="100%", height=16, aria_hidden="true")


def stacked_bar(name: str, title: str, parts: Sequence[Part]) -> Html:
    """All parts in one bar as wide as the page."""
    total = sum(part.value for part in parts) or 1.0
    rects, left = [], 0.0
    for part in parts:
        width = 100 * part.value / total
        rects.append(tag("rect", x=_pc(left), y=0, width=_pc(width), height=26, class_=f"part {part.style}"))
        left += width
    described = ", ".join(f"{part.label} {wording.percent(part.value / total)}" for part in parts)
    return labelled_svg(name, title, described, 26, *rects, class_="stack")


def swatch(style: str) -> Html:
    """A patch of colour for a legend."""
    patch = tag("rect", width=10, height=10, rx=2, class_=style)
    return tag("svg", patch, class_="swatch", width=10, height=10, aria_hidden="true")


def labelled_svg(name: str, title: str, described: str, height_px: int, *children: str, class_: str = "") -> Html:
    """A drawing that says what it shows to those who cannot see it. name: unique in the page."""
    heads = tag("title", title, id=f"{name}-title"), tag("desc", described, id=f"{name}-desc")
    return tag(
        "svg", *heads, *children, class_=class_ or None, width="100%", height=height_px, role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )  # fmt: skip


def _path(x_scale: Scale, y_scale: Scale, line: Line, values: np.ndarray, style: str) -> Html:
    kept = thin(values, MAX_POINTS)
    x = x_scale.place(line.x[kept]) * UNITS
    y = (1 - y_scale.place(values[kept])) * line.height_px
    words, pen = [], "M"
    for px, py in zip(x, y, strict=True):
        if np.isfinite(py):
            words.append(f"{pen}{px:.1f} {py:.1f}")
        pen = "L" if np.isfinite(py) else "M"
    return tag("path", d="".join(words), class_=style, vector_effect="non-scaling-stroke")


def _y_axis(scale: Scale, height_px: int) -> tuple[list[Html], list[Html]]:
    """Grid lines, and the labels that stand left of them."""
    grid, labels = [], []
    for tick in scale.ticks():
        y = round(float(1 - scale.place(tick)) * height_px, 1)
        grid.append(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid"))
        labels.append(tag("text", wording.number(tick), x=GUTTER_PX - 8, y=y, dy="0.32em", text_anchor="end"))
    return grid, labels


def _x_axis(scale: Scale, height_px: int) -> list[Html]:
    marks = [tag("line", x1=0, x2="100%", y1=height_px, y2=height_px, class_="axis")]
    for tick in linear_ticks(scale.low, scale.high):
        x = round(float(scale.place(tick)) * 100, 2)
        marks += [_vertical(x, height_px, height_px + 4, "axis"), _x_label(x, height_px + 17, f"{tick:,.0f}")]
    return marks


def _x_label(x: float, y: float, text: str) -> Html:
    """A label at x percent that does not leave the drawing."""
    anchor = "start" if x < 3 else "end" if x > 95 else "middle"
    return tag("text", text, x=_pc(x), y=y, text_anchor=anchor)


def _vertical(x: float, y1: float, y2: float, style: str) -> Html:
    return tag("line", x1=_pc(x), x2=_pc(x), y1=y1, y2=y2, class_=style)


def _rate_bar(rate: Rate, top: float, height: float) -> list[Html]:
    low, high, middle = 100 * rate.low, 100 * rate.high, top + height / 2
    return [
        tag("rect", x=0, y=top, width=_pc(100 * rate.rate), height=height, class_=rate.style),
        tag("line", x1=_pc(low), x2=_pc(high), y1=middle, y2=middle, class_="whisker"),
        _vertical(low, middle - 3, middle + 3, "whisker"),
        _vertical(high, middle - 3, middle + 3, "whisker"),
    ]


def _gaps(line: Line) -> str:
    num_gaps = int((~np.isfinite(line.y)).sum())
    return f"{wording.count(num_gaps, 'step')} not finite" if num_gaps else ""


def _text(values: np.ndarray, index: int) -> str:
    return wording.number(float(values[index])) if len(values) else wording.UNKNOWN


def _pc(value: float) -> str:
    return f"{value:.2f}%"
