"""What a run directory holds, read for its report. Every part may be absent; a broken part is named."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import EpisodeKey, InputError

BASELINE_STEP = 0  # the evaluation of this step judged the untrained policy


@dataclass(frozen=True)
class Evaluation:
    """One folder of eval/. outcomes: line of episodes.jsonl by key; instructions: sentence by task."""

    step: int
    summary: dict[str, Any]
    outcomes: dict[EpisodeKey, dict[str, Any]]
    instructions: dict[str, str]
    videos: tuple[Path, ...]

    @property
    def name(self) -> str:
        return "untrained" if self.step == BASELINE_STEP else "trained"


@dataclass(frozen=True)
class RunFacts:
    """steps: column by name, float64, a value per training step (NaN where one does not tell); {} without steps."""

    name: str
    recipe_text: str
    recipe: dict[str, Any]
    steps: dict[str, np.ndarray]
    baseline: Evaluation | None
    candidate: Evaluation | None
    gate: dict[str, Any] | None
    demo: dict[str, Any] | None
    dataset: dict[str, Any] | None


def read_run(run_dir: Path) -> RunFacts:
    """Raises InputError when `run_dir` holds no run, or a file in it is not as vlarge writes it."""
    if not run_dir.is_dir():
        raise InputError(f"no run directory at {run_dir}")
    recipe_text = _read(run_dir / "recipe.toml", str) or ""
    evaluations = _evaluations(run_dir / "eval")
    facts = RunFacts(
        name=run_dir.resolve().name,
        recipe_text=recipe_text,
        recipe=_read(run_dir / "recipe.toml", tomllib.loads) or {},
        steps=_read(run_dir / "steps.jsonl", _columns) or {},
        baseline=evaluations.get(BASELINE_STEP) if len(evaluations) > 1 else None,
        candidate=evaluations[max(evaluations)] if evaluations else None,
        gate=_last_gate(run_dir / "gate"),
        demo=_read(run_dir / "demo.json", _object("stages_s", "loop_s")),
        dataset=_read(run_dir / "data" / "meta" / "info.json", _dataset_info),
    )
    if not (recipe_text or facts.steps or facts.candidate or facts.gate or facts.demo or facts.dataset):
        raise InputError(f"{run_dir} holds no run: no recipe.toml, no steps.jsonl, no result; name a run directory")
    return facts


def _evaluations(folder: Path) -> dict[int, Evaluation]:
    """Finished evaluations by step."""
    folders = {int(entry.name): entry for entry in _entries(folder) if entry.name.isdecimal() and entry.is_dir()}
    found = {step: _evaluation(step, entry) for step, entry in sorted(folders.items())}
    return {step: evaluation for step, evaluation in found.items() if evaluation}


def _evaluation(step: int, folder: Path) -> Evaluation | None:
    summary = _read(folder / "summary.json", _object("metric", "num_success", "num_episodes", "wilson95", "tasks"))
    if summary is None:
        return None
    plan = _read(folder / "plan.json", _object("specs")) or {"specs": {}}
    return Evaluation(
        step=step,
        summary=summary,
        outcomes=_read(folder / "episodes.jsonl", _outcomes) or {},
        instructions={task: str(spec.get("instruction", "")) for task, spec in plan["specs"].items()},
        videos=tuple(path for path in _entries(folder / "videos") if path.suffix == ".mp4"),
    )


def _last_gate(folder: Path) -> dict[str, Any] | None:
    steps = {int(path.stem): path for path in _entries(folder) if path.suffix == ".json" and path.stem.isdecimal()}
    parse = _object("verdict", "p_value", "alpha", "test", "discordant", "num_pairs", "baseline", "candidate")
    return _read(steps[max(steps)], parse) if steps else None


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _read[T](path: Path, parse: Callable[[str], T]) -> T | None:
    """The parsed file; None when there is none."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read for the report ({error}): mend or remove it") from error


def _object(*keys: str) -> Callable[[str], dict[str, Any]]:
    """A parser of JSON objects that have these keys."""

    def parse(text: str) -> dict[str, Any]:
        content = json.loads(text)
        missing = [key for key in keys if key not in content] if isinstance(content, dict) else keys
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        return dict(content)

    return parse


def _dataset_info(text: str) -> dict[str, Any]:
    """A dataset's info.json may come from anywhere: what the report shows of it must be of the right type."""
    info = _object("features")(text)
    for name in ("total_episodes", "total_frames", "total_tasks", "fps"):
        if not isinstance(info.get(name, 0), int | float):
            raise ValueError(f"its {name} is no number")
    for name, feature in info["features"].items():
        if not isinstance(feature["shape"], list):
            raise ValueError(f"the shape of its feature {name} is no list")
    return info


def _outcomes(text: str) -> dict[EpisodeKey, dict[str, Any]]:
    lines = map(json.loads, text.splitlines())
    return {EpisodeKey(line["task"], line["init_id"], line["seed"]): line for line in lines if line["outcome"]}


def _columns(text: str) -> dict[str, np.ndarray]:
    """steps.jsonl as columns. A killed run leaves half a last line: it is not counted."""
    lines = text.splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    records = [record for record in records if isinstance(record["step"], int)]
    names = {name for record in records for name, value in record.items() if isinstance(value, int | float)}
    return {name: _column(records, name) for name in sorted(names)}


def _column(records: Iterable[Mapping[str, Any]], name: str) -> np.ndarray:
    values = (record.get(name) for record in records)
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)
