"""Settings of a simulated environment; part of every result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """cameras: names of the simulator's cameras. horizon: 0 keeps the simulator's own.

    render_quality: "fast" renders without shadows, multisampling and reflections; "full" with the simulator's defaults.
    """

    cameras: tuple[str, ...] = ("corner2",)
    image_size: int = 96
    horizon: int = 0
    render_quality: str = "fast"
