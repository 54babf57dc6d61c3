"""The same scrutiny for anybody's own before and after: ratio, time saved, what a percentage means, efficiency."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from vlarge.cluster.plan.claims import (
    BEYOND_LINEAR,
    DOES_NOT_FOLLOW,
    HOLDS,
    HOLDS_AS_RATIO,
    NO_GAIN,
    Check,
    arrow,
    times,
)
from vlarge.cluster.plan.quantities import Interval, parse, speedup, stated
from vlarge.contracts import InputError

CLAIM = re.compile(r"([+-]?)(\d+(?:\.\d+)?)\s*([x×%])", re.IGNORECASE)


def check_own(before: str, after: str, claim: str = "", gpus: tuple[int, int] | None = None) -> list[Check]:
    """Rows on two measurements ("15h", "22min"; or rates, "74 samples/s"), a claim about them ("40x", "97.5%", "+65%",
    "-40%") and the numbers of GPUs they ran on. InputError for what cannot be read."""
    first, last = parse(before), parse(after)
    ratio, raw = speedup(first, last), arrow(first, last)
    rows = [_gain(raw, ratio)]
    if claim:
        rows.append(_claim(claim, raw, ratio))
    if gpus:
        rows.append(_efficiency(gpus, raw, ratio))
    return rows


def _gain(raw: str, ratio: Interval) -> Check:
    saved, increase = 1 - 1 / ratio.value, ratio.value - 1
    verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else NO_GAIN
    return Check(
        "speed-up",
        raw,
        times(ratio),
        verdict,
        f"Time {0.0 - saved:+.2%}, throughput {increase:+.2%}, ratio {ratio.value:.2%}: one gain, three "
        "ways to say it. The range is what rounding leaves open.",
        {"speedup": ratio.value, "speedup_low": ratio.low, "speedup_high": ratio.high, "time_saved": saved},
    )


def _claim(claim: str, raw: str, ratio: Interval) -> Check:
    fitting = [(verdict, meaning) for verdict, meaning, claimed in _readings(claim) if claimed.meets(ratio)]
    verdict, meaning = fitting[0] if fitting else (DOES_NOT_FOLLOW, f"The numbers give {times(ratio)}.")
    return Check(f"“{claim}”", raw, times(ratio), verdict, meaning, {"speedup": ratio.value})


def _readings(claim: str) -> Iterator[tuple[str, str, Interval]]:
    """Each thing the claim can mean: its verdict if true, in words, and the speed-up it then stands for."""
    found = CLAIM.fullmatch(claim.strip())
    if not found:
        raise InputError(f"cannot read the claim {claim!r}: write 40x, 97.5%, +65% or -40%")
    sign, number, unit = found.groups()
    claimed = stated(Decimal(number))
    if unit != "%":
        yield HOLDS, "A ratio, as it should be written.", claimed
        return
    if sign != "+" and claimed.high < 100:
        yield HOLDS, f"As time saved: {number}% less.", claimed.through(lambda value: 1 / (1 - value / 100))
    if sign != "-":
        meaning = f"As an increase of throughput by {number}%."
        yield HOLDS, meaning, claimed.through(lambda value: 1 + value / 100)
    if not sign:
        meaning = f"{number}% is the ratio; the increase is {claimed.value - 100:.3g}%."
        yield HOLDS_AS_RATIO, meaning, claimed.through(lambda value: value / 100)


def _efficiency(gpus: tuple[int, int], raw: str, ratio: Interval) -> Check:
    if min(gpus) < 1:
        raise InputError(f"--gpus-before and --gpus-after must be at least 1, got {gpus[0]} and {gpus[1]}")
    scale = gpus[1] / gpus[0]
    efficiency = ratio.value / scale
    verdict = BEYOND_LINEAR if ratio.low > scale else NO_GAIN if ratio.high <= 1 < scale else HOLDS
    reason = (
        "More than the GPUs can give: caches, noise, or something else changed between the two runs."
        if verdict == BEYOND_LINEAR
        else f"GPU time per unit of work {1 / efficiency - 1:+.1%}."
    )
    return Check(
        f"{gpus[0]} → {gpus[1]} GPUs scale",
        raw,
        f"{times(ratio)} of {scale:.3g}×: {efficiency:.1%} efficient",
        verdict,
        reason,
        {"speedup": ratio.value, "scale": scale, "efficiency": efficiency},
    )
