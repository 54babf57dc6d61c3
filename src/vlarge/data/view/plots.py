"""Curves over frames: panels of a few lines each, with ticks, names and colours that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from vlarge.data.view.scene import Curves
from vlarge.data.view.text import shaped, shorten, width_of

# Okabe and Ito's palette, which most colour-blind people tell apart, without its yellow and with grey for black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
INK, FAINT, GRID, PAPER = "#1A1A1A", "#6B6B6B", "#E4E4E4", "#FFFFFF"
LINES_PER_PANEL = len(COLOURS)
MAX_RATIO = 12  # a line that takes less of its panel's height is drawn elsewhere
STILL = 1e-5  # of the value: what moves less is constant
SMALL = 17  # pixels of text
GUTTER, FOOT = 64, 30  # left of a plot and below it, for its ticks
LEGEND_ROW, PLOT_HEIGHT = 26, 190
SMOOTH = 3  # lines are drawn this much larger and scaled down
MAX_NAME = 420


@dataclass(frozen=True)
class Panel:
    """Some dimensions of a feature, in one plot."""

    curves: Curves
    dims: tuple[int, ...]


def panels_of(curves: Curves) -> list[Panel]:
    """Dimensions that move, a few to a panel: each in the first one with room where it and all others show."""
    groups: list[list[int]] = []
    for dim in np.flatnonzero(_moves(curves)).tolist():
        fitting = (g for g in groups if len(g) < LINES_PER_PANEL and _show_together(curves.drawn_TA[:, [*g, dim]]))
        group = next(fitting, None)
        if group is None:
            groups.append([dim])
        else:
            group.append(dim)
    return [Panel(curves, tuple(group)) for group in groups]


def _moves(curves: Curves) -> np.ndarray:
    values = curves.drawn_TA
    return np.asarray(np.ptp(values, axis=0) > STILL * np.maximum(1, np.abs(values).max(axis=0)))


def _show_together(values: np.ndarray) -> bool:
    return bool(np.ptp(values, axis=0).min() * MAX_RATIO >= np.ptp(values))


def constant_note(curves: Curves) -> str:
    """What is not drawn: dimensions that hardly move, those of one value together."""
    by_value: dict[str, list[str]] = {}
    for dim in np.flatnonzero(~_moves(curves)):
        by_value.setdefault(f"{curves.drawn_TA[0, dim]:.4g}", []).append(_label(curves, int(dim)))
    groups = [f"{', '.join(names)} = {value}" for value, names in by_value.items()]
    return f"not drawn, for they are constant: {'; '.join(groups)}" if groups else ""


@dataclass(frozen=True)
class Axes:
    """Where a panel's plot lies on the page: pixels, and the values at its edges."""

    left: int
    top: int
    width: int
    height: int
    num_frames: int
    low: float
    high: float

    def x(self, frame: float) -> float:
        return self.left + frame / max(1, self.num_frames - 1) * self.width

    def y(self, value: float) -> float:
        return self.top + (self.high - value) / (self.high - self.low) * self.height


def panel_height(panel: Panel, width: int) -> int:
    return _legend_rows(panel, width) * LEGEND_ROW + PLOT_HEIGHT + FOOT + 12


def draw_panel(page: Image.Image, panel: Panel, left: int, top: int, width: int, marks: Sequence[int]) -> Axes:
    """Draw legend, grid, ticks and lines. marks: frames at which the task changes."""
    draw = ImageDraw.Draw(page)
    _draw_legend(draw, panel, left + GUTTER, top, width - GUTTER)
    values = panel.curves.drawn_TA[:, panel.dims]
    low, high, step = nice_range(float(values.min()), float(values.max()))
    plot_top = top + _legend_rows(panel, width) * LEGEND_ROW + 10
    axes = Axes(left + GUTTER, plot_top, width - GUTTER - 8, PLOT_HEIGHT, len(values), low, high)
    _draw_grid(draw, axes, step)
    for mark in marks:
        for y in range(axes.top, axes.top + axes.height, 8):
            draw.line([(axes.x(mark), y), (axes.x(mark), y + 4)], FAINT)
    _draw_lines(page, axes, values)
    return axes


def nice_range(low: float, high: float, num_ticks: int = 4) -> tuple[float, float, float]:
    """Round limits around the values and the step between ticks: 1, 2 or 5 times a power of ten."""
    span = (high - low) or max(abs(high), 1.0)
    raw = span / num_ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _legend_rows(panel: Panel, width: int) -> int:
    return 1 + max(row for row, _ in _legend_places(panel, width - GUTTER))


def _legend_places(panel: Panel, width: int) -> list[tuple[int, float]]:
    # Row and x of each entry: the swatch, the name, and room to the next.
    places, row, x = [], 0, 0.0
    for d in panel.dims:
        needed = 28 + width_of(_name(panel, d), SMALL)
        if x and x + needed > width:
            row, x = row + 1, 0.0
        places.append((row, x))
        x += needed + 22
    return places


def _name(panel: Panel, dim: int) -> str:
    return shorten(_label(panel.curves, dim), SMALL, MAX_NAME)


def _label(curves: Curves, dim: int) -> str:
    bad = int((~np.isfinite(curves.values_TA[:, dim])).sum())
    return f"{curves.names[dim]} ({bad} not finite)" if bad else curves.names[dim]


def _draw_legend(draw: ImageDraw.ImageDraw, panel: Panel, left: int, top: int, width: int) -> None:
    for d, colour, (row, x) in zip(panel.dims, COLOURS, _legend_places(panel, width), strict=False):
        middle = top + row * LEGEND_ROW + LEGEND_ROW // 2
        draw.line([(left + x, middle), (left + x + 20, middle)], colour, 4)
        line, font = shaped(_name(panel, d), SMALL)
        draw.text((left + x + 28, middle), line, INK, font, anchor="lm")


def _draw_grid(draw: ImageDraw.ImageDraw, axes: Axes, step: float) -> None:
    count = round((axes.high - axes.low) / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    for i in range(count + 1):
        value = axes.low + i * step
        y = round(axes.y(value))
        draw.line([(axes.left, y), (axes.left + axes.width, y)], GRID)
        text = f"{value + 0.0:.{digits}f}" if 1e-4 <= step < 1e5 else f"{value:.1e}"
        line, font = shaped(text, SMALL)
        draw.text((axes.left - 10, y), line, FAINT, font, anchor="rm")
    _, _, frame_step = nice_range(0, max(1, axes.num_frames - 1), 6)
    frame_step = max(1, round(frame_step))
    for frame in range(0, axes.num_frames, frame_step):
        last = frame + frame_step >= axes.num_frames
        line, font = shaped(f"frame {frame}" if last else str(frame), SMALL)
        x = min(axes.x(frame), axes.left + axes.width - font.getlength(line) / 2 + 8)
        draw.line([(axes.x(frame), axes.top + axes.height), (axes.x(frame), axes.top + axes.height + 5)], FAINT)
        draw.text((x, axes.top + axes.height + 9), line, FAINT, font, anchor="mt")


def _draw_lines(page: Image.Image, axes: Axes, values_TA: np.ndarray) -> None:
    box = (axes.left, axes.top - 2, axes.left + axes.width + 1, axes.top + axes.height + 3)
    size = ((box[2] - box[0]) * SMOOTH, (box[3] - box[1]) * SMOOTH)
    layer = page.crop(box).resize(size, Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(layer)
    for colour, values in zip(COLOURS, values_TA.T, strict=False):
        frames, kept = _thinned(values, axes.width)
        points = [
            ((axes.x(t) - box[0]) * SMOOTH, (axes.y(float(v)) - box[1]) * SMOOTH)
            for t, v in zip(frames, kept, strict=True)
        ]
        draw.line(points if len(points) > 1 else points * 2, colour, 2 * SMOOTH, joint="curve")
    page.paste(layer.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BOX), box[:2])


def _thinned(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    # At most four points a pixel: the least and the greatest of each run of frames.
    frames = np.arange(len(values))
    run = len(values) // (2 * width)
    if run < 2:
        return frames, values
    starts = range(0, len(values), run)
    ends = [sorted((s + int(values[s : s + run].argmin()), s + int(values[s : s + run].argmax()))) for s in starts]
    kept = np.unique(np.concatenate([[0], np.ravel(ends), [len(values) - 1]]))
    return kept, values[kept]
