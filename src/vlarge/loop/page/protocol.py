"""What someone needs to obtain these numbers again: how it was judged, on what it was trained, every setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vlarge.contracts import ACTION, IMAGE_PREFIX, STATE
from vlarge.loop.page import wording
from vlarge.loop.page.facts import Evaluation, RunFacts
from vlarge.loop.page.markup import Html, join, tag

Entry = tuple[str, str]


def reproduction_section(facts: RunFacts) -> Html | None:
    """The protocol and the dataset side by side, the recipe folded below."""
    cards = []
    if facts.candidate:
        cards.append(_card("Protocol", _protocol(facts.candidate)))
    if facts.dataset:
        cards.append(_card("Training data", _dataset(facts.dataset)))
    blocks = [tag("div", *cards, class_="pair")] if cards else []
    if facts.recipe_text:
        recipe = tag("pre", tag("code", facts.recipe_text.strip()), tabindex=0)
        blocks.append(tag("details", tag("summary", "recipe.toml: every setting of this run"), recipe))
    if not blocks:
        return None
    return tag("section", tag("h2", "Protocol and settings"), *blocks, id="protocol")


def _card(title: str, entries: Iterable[Entry]) -> Html:
    known = [(name, value) for name, value in entries if value]
    return tag("div", tag("h3", title), tag("dl", *(_entry(*each) for each in known), class_="entries"))


def _entry(name: str, value: str) -> Html:
    return join([tag("dt", name), tag("dd", value)])


def _protocol(evaluation: Evaluation) -> list[Entry]:
    summary = evaluation.summary
    protocol: Mapping[str, Any] = summary.get("protocol", {})
    versions: Mapping[str, Any] = protocol.get("versions", {})
    return [
        ("Metric", str(summary["metric"])),
        ("Episodes", f"{wording.count(summary['num_episodes'], 'key')}: task, initial state, seed"),
        ("Seeds", wording.ranges(protocol.get("seeds", []))),
        ("Initial states", wording.ranges(protocol.get("init_ids", []))),
        ("Horizon", _per_task(protocol.get("horizon", {}), "steps")),
        ("Control rate", _per_task(protocol.get("control_hz", {}), "Hz")),
        ("Looks again after", _replan(protocol)),
        ("Cameras", _cameras(protocol.get("cameras", {}))),
        ("Render quality", str(protocol.get("render_quality", ""))),
        ("Reset mode", ", ".join(map(str, protocol.get("reset_mode", [])))),
        ("Inference", str(protocol.get("inference", ""))),
        ("Simulator", ", ".join(map(str, protocol.get("simulator", [])))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Policy", str(summary.get("policy", ""))),
        ("Plan", f"{summary.get('plan_hash', '')} (environments {summary.get('spec_hash', '')})"),
    ]


def _dataset(info: Mapping[str, Any]) -> list[Entry]:
    num_frames, fps = info.get("total_frames"), info.get("fps")
    features: Mapping[str, Mapping[str, Any]] = info["features"]
    cameras = {
        name: _height_width(feature) for name, feature in features.items() if feature.get("dtype") in ("video", "image")
    }
    length = f" ({wording.duration(num_frames / fps)} at {fps:g} Hz)" if num_frames and fps else ""
    return [
        ("Format", f"LeRobot {info.get('codebase_version', '')}"),
        ("Robot", str(info.get("robot_type") or "")),
        ("Episodes", wording.number(info.get("total_episodes"))),
        ("Tasks", wording.number(info.get("total_tasks"))),
        ("Frames", f"{wording.number(num_frames)}{length}"),
        ("Cameras", _cameras(cameras)),
        ("State", _vector(features.get(STATE))),
        ("Action", _vector(features.get(ACTION))),
    ]


def _per_task(values: Mapping[str, Any], unit: str) -> str:
    """One value when all tasks share it."""
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values())):g} {unit}"
    return ", ".join(f"{wording.short_task(task)} {value:g} {unit}" for task, value in values.items())


def _replan(protocol: Mapping[str, Any]) -> str:
    if "replan" not in protocol:
        return ""
    return wording.count(protocol["replan"], "action") if protocol["replan"] else "its whole chunk of actions"


def _cameras(cameras: Mapping[str, Sequence[int]]) -> str:
    """Feature key -> (height, width) in pixels, or () where unknown."""
    names = {key: key.removeprefix(IMAGE_PREFIX) for key in cameras}
    return ", ".join(names[key] + (f" {size[1]}×{size[0]}" if size else "") for key, size in cameras.items())


def _height_width(feature: Mapping[str, Any]) -> tuple[int, ...]:
    """Some datasets name the channels first."""
    sizes = dict(zip(feature.get("names") or ("height", "width"), feature["shape"], strict=False))
    return (sizes["height"], sizes["width"]) if {"height", "width"} <= sizes.keys() else ()


def _vector(feature: Mapping[str, Any] | None) -> str:
    if feature is None:
        return ""
    names = feature.get("names")
    length = f"{feature['shape'][0]} values"
    return f"{length}: {', '.join(map(str, names))}" if isinstance(names, list) and len(names) <= 12 else length
