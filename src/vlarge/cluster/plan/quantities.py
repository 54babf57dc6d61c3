"""Printed numbers and what their ratios can be: a number stands for everything that rounds to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from vlarge.contracts import InputError

SECONDS = {
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
TIME_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
RATE = re.compile(r"(\d+(?:\.\d+)?)(?:\s+([a-z][a-z ]*?))?\s*/\s*([a-z]+)")


class Interval(NamedTuple):
    """A value and the range that the rounding of its sources leaves open."""

    value: float
    low: float
    high: float

    def through(self, rising: Callable[[float], float]) -> Interval:
        """What a rising function makes of it."""
        return Interval(rising(self.value), rising(self.low), rising(self.high))

    def meets(self, other: Interval) -> bool:
        """Whether both can be the same number before rounding."""
        return self.low <= other.high and other.low <= self.high


def rounded(number: Decimal | int) -> Interval:
    """A printed number, known to half a unit of its last digit: 0.73 is 0.725 to 0.735."""
    exponent = number.as_tuple().exponent if isinstance(number, Decimal) else 0
    half = 0.5 * 10.0 ** int(exponent)
    return Interval(float(number), float(number) - half, float(number) + half)


def stated(number: Decimal | int) -> Interval:
    """A claimed number: what rounds to it, within 2.5% (a ratio of 1.65 is no "2×")."""
    value, low, high = rounded(number)
    return Interval(value, max(low, 0.975 * value), min(high, 1.025 * value))


def over(top: Interval, bottom: Interval) -> Interval:
    """top / bottom, both positive."""
    return Interval(top.value / bottom.value, top.low / bottom.high, top.high / bottom.low)


@dataclass(frozen=True)
class Quantity:
    """A time or a rate. text: as printed. size: in seconds, or per second. of: "time", or what a rate counts."""

    text: str
    size: Interval
    of: str = "time"


def duration(number: Decimal | int, unit: str) -> Quantity:
    """A printed time: duration(22, "min")."""
    return Quantity(f"{number} {unit}", rounded(number).through(lambda value: value * SECONDS[unit]))


def rate(number: Decimal | int, of: str) -> Quantity:
    """A printed rate: rate(Decimal("624.0"), "steps"), per second."""
    return Quantity(f"{number} {of}/s", rounded(number), of)


def parse(text: str) -> Quantity:
    """A time ("15h", "2.85 s", "1h30min") or a rate ("74 samples/s"); InputError for anything else, or for zero."""
    clean = text.strip().lower()
    if found := RATE.fullmatch(clean):
        per = _seconds(found[3], text)
        size = rounded(Decimal(found[1])).through(lambda value: value / per)
        quantity = Quantity(text.strip(), size, found[2] or "rate")
    else:
        quantity = Quantity(text.strip(), _time(clean, text))
    if quantity.size.low <= 0:
        raise InputError(f"{text!r} may be zero before rounding, so its ratio can be anything: give more digits")
    return quantity


def speedup(before: Quantity, after: Quantity) -> Interval:
    """How many times faster `after` is. InputError when the two do not measure the same."""
    if before.of != after.of:
        raise InputError(
            f"cannot compare {before.text!r} with {after.text!r}: give two times, or two rates of one thing"
        )
    return over(before.size, after.size) if before.of == "time" else over(after.size, before.size)


def _time(clean: str, text: str) -> Interval:
    """The sum of the parts, known to half a unit of the last part's last digit."""
    parts = TIME_PART.findall(clean)
    if not parts or TIME_PART.sub("", clean):
        raise InputError(f"cannot read {text!r}: give a time (15h, 22min, 2.85s, 1h30min) or a rate (74 samples/s)")
    sizes = [(rounded(Decimal(number)), _seconds(unit, text)) for number, unit in parts]
    total = sum(number.value * per for number, per in sizes)
    number, per = sizes[-1]
    return Interval(total, total - per * (number.value - number.low), total + per * (number.high - number.value))


def _seconds(unit: str, text: str) -> float:
    if unit not in SECONDS:
        raise InputError(f"cannot read {text!r}: {unit!r} is no unit of time; write ms, s, min, h or d")
    return SECONDS[unit]
