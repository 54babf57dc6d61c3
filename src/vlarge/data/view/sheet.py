"""A contact sheet: frames of each camera at even intervals, below them the curves of state and action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

from vlarge.data.view.plots import FAINT, INK, PAPER, SMALL, Axes, constant_note, draw_panel, panel_height, panels_of
from vlarge.data.view.scene import Curves, Scene
from vlarge.data.view.text import shaped, wrap

WIDTH, MARGIN, GAP = 1680, 60, 14
TITLE, HEAD, BODY = 36, 24, 21  # pixels of text
WARNING = "#B45309"
MAX_TASK_LINES, MAX_TASKS = 4, 6
MIN_PICTURE, MAX_COLUMNS = 180, 8
BUFFER_HEIGHT = 20_000  # what is drawn on before it is cut to what was used


@dataclass
class Page:
    """A page that is filled from the top down. y: where the next thing goes."""

    image: Image.Image = field(default_factory=lambda: Image.new("RGB", (WIDTH, BUFFER_HEIGHT), PAPER))
    y: int = MARGIN

    @property
    def draw(self) -> ImageDraw.ImageDraw:
        return ImageDraw.Draw(self.image)

    def write(self, text: str, size: int, colour: str, max_lines: int = 1, indent: int = 0) -> None:
        """Lines of text, wrapped."""
        for part in wrap(text, size, WIDTH - 2 * MARGIN - indent, max_lines):
            line, font = shaped(part, size)
            self.draw.text((MARGIN + indent, self.y), line, colour, font)
            self.y += round(size * 1.45)

    def finished(self) -> Image.Image:
        return self.image.crop((0, 0, WIDTH, min(self.y + MARGIN, BUFFER_HEIGHT)))


def draw_sheet(scene: Scene) -> Image.Image:
    """The whole sheet."""
    page = Page()
    write_head(page, scene)
    for camera in scene.cameras:
        _draw_camera(page, scene, camera)
    for curves in scene.curves:
        draw_curves(page, scene, curves)
    return page.finished()


def write_head(page: Page, scene: Scene) -> None:
    """Title, task and faults."""
    page.write(scene.title, TITLE, INK)
    page.write(scene.subtitle, BODY, FAINT)
    page.y += 14
    for first, task in scene.tasks[:MAX_TASKS]:
        when = f"from frame {first}:  " if len(scene.tasks) > 1 else ""
        page.write(f"{when}{task or '(no task)'}", HEAD, INK, MAX_TASK_LINES)
    if len(scene.tasks) > MAX_TASKS:
        page.write(f"and {len(scene.tasks) - MAX_TASKS} more changes of task", BODY, FAINT)
    for fault in scene.faults:
        page.write(f"! {fault}", BODY, WARNING, 3)
    page.y += 26


def even_frames(length: int, count: int) -> list[int]:
    """At most `count` frame numbers at even intervals, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, length - 1, min(count, length))})


def _draw_camera(page: Page, scene: Scene, camera: str) -> None:
    page.write(camera, HEAD, INK)
    page.y += 6
    room = WIDTH - 2 * MARGIN
    columns = min(MAX_COLUMNS, (room + GAP) // (MIN_PICTURE + GAP))
    width = (room - (columns - 1) * GAP) // columns
    frames = even_frames(scene.episode.length, columns)
    height = 0
    for column, (frame, picture) in enumerate(zip(frames, scene.pictures(camera, frames), strict=True)):
        height = round(width * picture.shape[0] / picture.shape[1])
        left = MARGIN + column * (width + GAP)
        resized = Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)
        page.image.paste(resized, (left, page.y))
        line, font = shaped(f"{frame} · {frame / scene.dataset.fps:.2f} s", SMALL)
        page.draw.text((left, page.y + height + 7), line, FAINT, font)
    page.y += height + SMALL + 44


def draw_curves(page: Page, scene: Scene, curves: Curves) -> list[Axes]:
    """The panels of a feature, one or two beside each other; returns where they lie."""
    page.write(curves.title, HEAD, INK)
    page.y += 6
    panels = panels_of(curves)
    columns = 1 if len(panels) == 1 else 2
    width = (WIDTH - 2 * MARGIN - (columns - 1) * 3 * GAP) // columns
    marks = [first for first, _ in scene.tasks[1:]]
    axes = []
    for row in range(math.ceil(len(panels) / columns)):
        beside: Sequence = panels[row * columns : (row + 1) * columns]
        height = max(panel_height(panel, width) for panel in beside)
        for column, panel in enumerate(beside):
            # Plots of one row stand on one line, whatever room their legends take.
            top = page.y + height - panel_height(panel, width)
            axes.append(draw_panel(page.image, panel, MARGIN + column * (width + 3 * GAP), top, width, marks))
        page.y += height + 14
    if note := constant_note(curves):
        page.write(note, SMALL, FAINT, 3)
    page.y += 20
    return axes
