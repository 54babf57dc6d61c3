"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNKNOWN = "–"


def percent(fraction: float | None, digits: int = 0) -> str:
    """0.784 -> "78%"."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{fraction * 100:.{digits}f}%"


def interval(low_high: Sequence[float]) -> str:
    """(0.65, 0.87) -> "65–87%"."""
    low, high = low_high
    return f"{low * 100:.0f}–{high * 100:.0f}%"


def probability(p: float) -> str:
    """0.0312 -> "0.031"; 7.3e-12 -> "7.3 × 10⁻¹²"."""
    if p == 0 or p >= 0.001:
        return f"{p:.2g}"
    mantissa, _, exponent = f"{p:.1e}".partition("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def duration(seconds: float | None) -> str:
    """0.0123 -> "12 ms"; 402 -> "6 min 42 s"; 8000 -> "2 h 13 min"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.{0 if seconds >= 0.00995 else 1}f} ms"
    if seconds < 59.95:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(num_bytes: float | None) -> str:
    """1_500_000 -> "1.5 MB"."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return UNKNOWN
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if num_bytes < 999.5:
            break
        num_bytes, unit = num_bytes / 1000, larger
    return f"{num_bytes:.{1 if num_bytes < 9.95 and unit != 'bytes' else 0}f} {unit}"


def number(value: float | None) -> str:
    """Three significant digits, thousands separated: 12345.6 -> "12,346"; 0.00051 -> "0.00051"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value != 0 and abs(value) < 1e-4:
        mantissa, _, exponent = f"{value:.2g}".partition("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(num: int, noun: str) -> str:
    """(1, "episode") -> "1 episode"; (50, "episode") -> "50 episodes"."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0–2, 5"."""
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in runs)


def short_task(task: str) -> str:
    """ "metaworld/drawer-close-v3" -> "drawer-close-v3"."""
    return task.rpartition("/")[2] or task
