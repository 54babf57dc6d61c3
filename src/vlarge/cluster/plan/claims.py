"""The scaling check: published headline figures of the thousand-GPU recipe, recomputed from their own raw numbers.

Raw numbers lie in `published.toml` (arXiv 2603.11101v1 and 2602.05765v1). Each is taken as anything that rounds to it,
so "holds" means that the claim can be true of the printed numbers, and every other verdict that it cannot.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.resources import files
from typing import Any

from vlarge.cluster.plan.quantities import Interval, Quantity, duration, rate, rounded, speedup, stated

HOLDS = "holds"
HOLDS_AS_RATIO = "holds as a ratio"  # a ratio of 1.65 written as 165%: an increase of 65%
RATIO_AT_BEST = "a ratio at best"  # no raw numbers to show even that
BEYOND_LINEAR = "beyond linear"
NO_GAIN = "no gain"
NOT_BY_BATCH = "not by batch size"  # impossible by it alone
DOES_NOT_FOLLOW = "does not follow"
MISLABELLED = "mislabelled"


@dataclass(frozen=True)
class Check:
    """One claim beside what its raw numbers give. values: the computed figures, unrounded, for machines."""

    claim: str
    raw: str
    gives: str
    verdict: str
    why: str
    values: dict[str, float] = field(default_factory=dict)


def published() -> dict[str, Any]:
    """The published numbers, as printed: Decimal where a point was printed, int otherwise."""
    return tomllib.loads((files(__package__) / "published.toml").read_text("utf-8"), parse_float=Decimal)


def check_published() -> list[Check]:
    """One row for each published claim, in the papers' order."""
    numbers = published()
    return [
        *_headline(numbers["headline"], numbers["data_parallel_scaling"][-1]),
        *_node_scaling(numbers["data_parallel_scaling"]),
        *_batch_scaling(numbers["data_parallel_scaling"][-1], *numbers["mini_batch_scaling"]),
        _lerobot(numbers["headline"], numbers["data_parallel_scaling"]),
        _packing(numbers["headline"]),
        _attention(numbers["headline"]),
        _fp8_speed(numbers["headline"]),
        _fp8_size(numbers["headline"], numbers["qwen25_vl_3b"]),
        *_rl_increase(numbers["rl_table3"], numbers["rl_table3_claimed_percent"]),
        _companion(numbers),
    ]


def times(ratio: Interval) -> str:
    """A ratio and the range that rounding leaves: 40.9× (38.7–43.3)."""
    digits = 2 if ratio.high < 10 else 1
    return f"{ratio.value:.{digits}f}× ({ratio.low:.{digits}f}–{ratio.high:.{digits}f})"


def arrow(before: Quantity, after: Quantity) -> str:
    return f"{before.text} → {after.text}"


def _headline(headline: dict[str, Any], largest: dict[str, Any]) -> Iterator[Check]:
    before, after = duration(headline["before_h"], "h"), duration(headline["after_min"], "min")
    ratio = speedup(before, after)
    saved = 1 - 1 / ratio.value
    early = speedup(before, duration(largest["epoch_h"], "h")).value
    yield Check(
        f"~{headline['claimed_speedup']}× faster epoch",
        arrow(before, after),
        times(ratio),
        _holds(ratio, stated(headline["claimed_speedup"])),
        f"Hardware and software together: the GPUs of the {before.text} run are not given. {early:.1f}× of it was "
        f"there at {largest['epoch_h']} h, before the batch of 512.",
        {"speedup": ratio.value, "speedup_at_mbs_128": early},
    )
    claimed = stated(headline["claimed_time_saved"])
    yield Check(
        f"{float(headline['claimed_time_saved']):.2%} less time",
        arrow(before, after),
        f"{saved:.2%} less",
        _holds(ratio, claimed.through(lambda value: 1 / (1 - value))),
        "The same gain as the ratio above, not a second one.",
        {"time_saved": saved},
    )


def _node_scaling(rows: list[dict[str, Any]]) -> Iterator[Check]:
    reasons = (
        "No model of compute and communication exceeds 100%: caches, or noise of 3% and more in every row.",
        "85%, give or take that noise.",
        "Over the whole range: the figure to quote, least hurt by noise.",
    )
    for (first, last), why in zip([rows[:2], rows[1:3], rows[::2]], reasons, strict=True):
        before, after = (duration(row["epoch_h"], "h") for row in (first, last))
        ratio, nodes = speedup(before, after), last["nodes"] / first["nodes"]
        yield Check(
            f"scaling, {first['nodes']} → {last['nodes']} nodes",
            arrow(before, after),
            f"{times(ratio)} of {nodes:.0f}×: {ratio.value / nodes:.1%} efficient",
            BEYOND_LINEAR if ratio.low > nodes else HOLDS,
            why,
            {"speedup": ratio.value, "efficiency": ratio.value / nodes},
        )


def _batch_scaling(mbs_128: dict[str, Any], mbs_256: dict[str, Any], mbs_512: dict[str, Any]) -> Iterator[Check]:
    smallest, small = duration(mbs_128["epoch_h"], "h"), duration(mbs_256["epoch_min"], "min")
    large = duration(mbs_512["epoch_min"], "min")
    ratio = speedup(smallest, small)
    yield Check(
        "batch 128 → 256",
        arrow(smallest, small),
        times(ratio),
        NO_GAIN if ratio.high <= 1 else HOLDS,
        "So compute did not set the pace: a sign of waiting for data, which no batch size mends.",
        {"speedup": ratio.value},
    )
    ratio, most = speedup(small, large), mbs_512["mbs"] / mbs_256["mbs"]
    yield Check(
        "batch 256 → 512",
        arrow(small, large),
        times(ratio),
        NOT_BY_BATCH if ratio.low > most else HOLDS,
        f"Impossible by batch alone: 1/{most:.0f} of the steps, none of them shorter, is {most:.2f}× at most. Storage "
        "was changed as well.",
        {"speedup": ratio.value, "most_by_batch": most},
    )


def _lerobot(headline: dict[str, Any], rows: list[dict[str, Any]]) -> Check:
    before, after = duration(headline["lerobot_before_h"], "h"), duration(headline["lerobot_after_min"], "min")
    claimed, ratio = stated(headline["lerobot_claimed"]), speedup(before, after)
    scaling = speedup(duration(rows[0]["epoch_h"], "h"), duration(rows[-1]["epoch_h"], "h"))
    is_scaling = scaling.meets(claimed) and not ratio.meets(claimed)
    return Check(
        f"{headline['lerobot_claimed']}× over LeRobot",
        arrow(before, after),
        times(ratio),
        MISLABELLED if is_scaling else _holds(ratio, claimed),
        f"{claimed.value}× is {rows[0]['epoch_h']} h / {rows[-1]['epoch_h']} h = {scaling.value:.2f}×: the cited "
        f"figure's own {rows[0]['nodes']} → {rows[-1]['nodes']} nodes, not a gain in software.",
        {"speedup": ratio.value, "node_scaling": scaling.value},
    )


def _packing(headline: dict[str, Any]) -> Check:
    percent, ratio = headline["packing_claimed_percent"], rounded(headline["packing_throughput_ratio"])
    saved = float(headline["packing_time_saved"])
    implied = 1 / (1 - saved)
    return Check(
        f"{percent}% by packing",
        f"{ratio.value}× throughput, {saved:.2%} less time",
        f"{implied:.2f}× from the time",
        _as_ratio(percent, Interval(implied, implied, implied)),
        f"An increase of {ratio.value - 1:.0%}; both raw numbers are one gain.",
        {"speedup": implied, "increase": ratio.value - 1},
    )


def _attention(headline: dict[str, Any]) -> Check:
    before, after = duration(headline["pi05_step_before_s"], "s"), duration(headline["pi05_step_after_s"], "s")
    ratio = speedup(before, after)
    return Check(
        f"{headline['pi05_claimed_percent']}% for π0.5",
        f"{arrow(before, after)} per step",
        times(ratio),
        _as_ratio(headline["pi05_claimed_percent"], ratio),
        f"An increase of {ratio.value - 1:.0%}, {1 - 1 / ratio.value:.1%} less time: padding and an empty camera slot "
        "left out.",
        {"speedup": ratio.value, "time_saved": 1 - 1 / ratio.value},
    )


def _fp8_speed(headline: dict[str, Any]) -> Check:
    percent, saved = headline["fp8_claimed_percent"], float(headline["fp8_compression"])
    ceiling = 1 / (1 - saved)
    can_be_increase = 1 + percent / 100 <= max(ceiling, 2.0)
    return Check(
        f">{percent}% speed by FP8",
        f"no times; {saved:.1%} fewer bytes",
        f"≤ {ceiling:.2f}× by bytes, ≤ 2× by arithmetic",
        HOLDS if can_be_increase else RATIO_AT_BEST,
        f"As {percent / 100:.1f}× possible, but shown in a picture only. As +{percent}% "
        f"({1 + percent / 100:.1f}×) beyond both bounds.",
        {"speedup_by_bytes": ceiling, "as_ratio": percent / 100, "as_increase": 1 + percent / 100},
    )


def _fp8_size(headline: dict[str, Any], model: dict[str, Any]) -> Check:
    """Every linear weight of the language model in one byte, with an fp32 scale per 128×128 block; the rest bf16."""
    hidden, key_value, intermediate = model["hidden"], model["key_value"], model["intermediate"]
    linear = model["layers"] * (2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * intermediate)
    saved = linear * (1 - 4 / 128**2) / (2 * model["parameters"])
    claimed = float(headline["fp8_compression"])
    return Check(
        f"{claimed:.1%} smaller by FP8",
        f"{linear / 1e9:.2f}B of {model['parameters'] / 1e9:.2f}B weights to one byte",
        f"{saved:.1%} smaller",
        HOLDS if abs(saved - claimed) < 0.01 else DOES_NOT_FOLLOW,
        "A saving, not a size: the language model's linear layers in blocks of 128×128, all else left in bf16.",
        {"saved": saved},
    )


def _rl_increase(table: dict[str, Any], claims: dict[str, Any]) -> Iterator[Check]:
    """Each task at the largest scale. "Increase" is the best row over `colocated`: not always the full method's."""
    names = {"libero_pi05": "π0.5 on LIBERO", "libero_gr00t": "GR00T on LIBERO", "maniskill_pi0": "π0 on ManiSkill"}
    gpus = table["gpus"][-1]
    for task, name in names.items():
        cells = {method: rates[-1] for method, rates in table[task].items()}
        base = cells.pop("colocated")
        best = max(cells, key=lambda method: cells[method])
        increase = {method: float(cell / base) - 1 for method, cell in cells.items()}
        claimed = claims[task][-1]
        follows = round(100 * (cells[best] / base - 1), 2) == claimed
        sync = cells["streamer"] / cells["disaggregated"] - 1
        yield Check(
            f"+{claimed}%, {name}",
            f"{base} → {cells[best]} steps/s",
            f"{increase[best]:+.2%}",
            DOES_NOT_FOLLOW if not follows else HOLDS if best == "streamer" else MISLABELLED,
            f"The full method over colocated, {gpus} GPUs; {sync:+.1%} over the synchronous disaggregated run."
            if best == "streamer"
            else f"That is {_words(best)} alone, {gpus} GPUs; the full method gives {increase['streamer']:+.1%}.",
            {"increase": increase[best], "increase_in_full": increase["streamer"]},
        )


def _companion(numbers: dict[str, Any]) -> Check:
    claimed = numbers["rl_companion_paper"]["claimed_percent"]
    cells = find_cells(numbers, claimed)
    paper = numbers["rl_companion_paper"]["pi0_libero_32gpu"]
    before, after = rate(paper["disaggregated_sync"], "steps"), rate(paper["full_async"], "steps")
    ratio = speedup(before, after).value - 1
    colocated = float(paper["full_async"] / paper["colocated"]) - 1
    return Check(
        f"+{claimed}% in RL",
        f"{paper['disaggregated_sync']} → {after.text}",
        f"{ratio:+.2%}",
        HOLDS if cells else DOES_NOT_FOLLOW,
        f"The companion paper's cell {'; '.join(cells)}: its slowest baseline. Over colocated {colocated:+.1%}.",
        {"increase": ratio, "increase_over_colocated": colocated},
    )


def find_cells(numbers: dict[str, Any], percent: Decimal) -> list[str]:
    """Every pair of methods, of one task and scale, whose increase rounds to `percent`."""
    tables = {
        f"{_words(task)} {gpus} GPUs": {method: rates[place] for method, rates in numbers["rl_table3"][task].items()}
        for place, gpus in enumerate(numbers["rl_table3"]["gpus"])
        for task in numbers["rl_table3_claimed_percent"]
    }
    tables["LIBERO π0 32 GPUs"] = numbers["rl_companion_paper"]["pi0_libero_32gpu"]
    return [
        f"{place}, {_words(fast)} over {_words(slow)}"
        for place, cells in tables.items()
        for fast, fast_rate in cells.items()
        for slow, slow_rate in cells.items()
        if round(100 * (fast_rate / slow_rate - 1), 2) == percent
    ]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _holds(value: Interval, claimed: Interval) -> str:
    return HOLDS if value.meets(claimed) else DOES_NOT_FOLLOW


def _as_ratio(percent: Decimal | int, ratio: Interval) -> str:
    """The verdict on a percentage that should be an increase."""
    claimed = stated(percent)
    as_ratio = claimed.through(lambda value: value / 100)
    as_increase = claimed.through(lambda value: 1 + value / 100)
    return HOLDS if ratio.meets(as_increase) else HOLDS_AS_RATIO if ratio.meets(as_ratio) else DOES_NOT_FOLLOW
