"""An episode as a film: the cameras beside each other, below them the curves with a line at the present frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vlarge.data.encode import exact_rate
from vlarge.data.view.plots import FAINT, SMALL, Axes
from vlarge.data.view.scene import Scene
from vlarge.data.view.sheet import BODY, GAP, MARGIN, WIDTH, Page, draw_curves, write_head
from vlarge.data.view.text import shaped

MAX_PICTURE_HEIGHT = 480
CURSOR = "#B00020"


def write_film(scene: Scene, path: Path) -> None:
    """Write the film, in real time, as an mp4 that browsers play."""
    import av

    page, boxes = _page(scene)
    axes = [a for curves in scene.curves for a in draw_curves(page, scene, curves)]
    image = page.finished()
    still = image.crop((0, 0, image.width, image.height // 2 * 2))  # colour is stored for squares of four pixels
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(
            "libx264", rate=exact_rate(scene.dataset.fps), options={"crf": "20", "preset": "ultrafast"}
        )
        stream.width, stream.height, stream.pix_fmt = still.width, still.height, "yuv420p"
        for picture in _pictures(scene, still, boxes, axes):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def _page(scene: Scene) -> tuple[Page, list[tuple[int, int, int, int]]]:
    """A page with its head and the room for pictures: left, top, width and height of each camera's."""
    page = Page()
    write_head(page, scene)
    page.y += BODY
    shapes = [next(iter(scene.pictures(camera, [0]))).shape for camera in scene.cameras]
    room = WIDTH - 2 * MARGIN - (len(shapes) - 1) * GAP
    height = min(MAX_PICTURE_HEIGHT, int(room / max(1e-9, sum(w / h for h, w, _ in shapes))))
    boxes, left = [], MARGIN
    for camera, (h, w, _) in zip(scene.cameras, shapes, strict=True):
        width = int(height * w / h)
        boxes.append((left, page.y, width, height))
        line, font = shaped(camera, SMALL)
        page.draw.text((left, page.y + height + 7), line, FAINT, font)
        left += width + GAP
    page.y += height + SMALL + 40 if shapes else 0
    return page, boxes


def _pictures(
    scene: Scene, still: Image.Image, boxes: list[tuple[int, int, int, int]], axes: list[Axes]
) -> Iterator[np.ndarray]:
    views = [scene.pictures(camera, range(scene.episode.length)) for camera in scene.cameras]
    for frame in range(scene.episode.length):
        page = still.copy()
        draw = ImageDraw.Draw(page)
        for view, (left, top, width, height) in zip(views, boxes, strict=True):
            page.paste(Image.fromarray(next(view)).resize((width, height), Image.Resampling.BILINEAR), (left, top))
        top = boxes[0][1] if boxes else MARGIN
        line, font = shaped(f"frame {frame} · {frame / scene.dataset.fps:.2f} s", BODY)
        draw.text((WIDTH - MARGIN, top - 12), line, CURSOR, font, anchor="rb")
        for a in axes:
            draw.line([(a.x(frame), a.top), (a.x(frame), a.top + a.height)], CURSOR, 2)
        yield np.asarray(page)
