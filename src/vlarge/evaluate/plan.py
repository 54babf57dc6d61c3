"""What an evaluation runs, fixed beforehand: episode keys, environments, and the settings that decide results."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlarge.contracts import EnvSpec, EpisodeKey, InputError, check_ranges
from vlarge.evaluate.config import EvaluateConfig
from vlarge.sim.config import SimConfig

FORMAT = 1


@dataclass(frozen=True)
class EvaluationPlan:
    """keys: sorted, each once. specs: task -> what the environment promised when the plan was made."""

    keys: tuple[EpisodeKey, ...]
    specs: dict[str, EnvSpec]
    sim: SimConfig
    replan: int

    @property
    def metric(self) -> str:
        return next(iter(self.specs.values())).metric

    def spec_hash(self) -> str:
        """Names the environments of all tasks together."""
        return _hash({task: spec.hash() for task, spec in self.specs.items()})

    def plan_hash(self) -> str:
        """Two results with the same plan hash judged the same episodes under the same settings."""
        return _hash(self._content())

    def save(self, path: Path) -> None:
        content = {**self._content(), "plan_hash": self.plan_hash()}
        write_atomically(path, json.dumps(content, indent=1) + "\n")

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "keys": [list(key) for key in self.keys],
            "specs": {task: {**asdict(spec), "hash": spec.hash()} for task, spec in sorted(self.specs.items())},
            "sim": asdict(self.sim),
            "replan": self.replan,
        }


def make_plan(config: EvaluateConfig, sim: SimConfig, *, first_init_id: int = 0) -> EvaluationPlan:
    """The plan of `config.episodes` keys per task: init ids from `first_init_id` on, all with `config.seed`."""
    from vlarge.sim import make_env

    if not config.tasks:
        raise InputError("evaluate.tasks is empty: name at least one task, for instance metaworld/reach-v3")
    if len(set(config.tasks)) != len(config.tasks):
        raise InputError(f"evaluate.tasks names a task twice: {', '.join(config.tasks)}")
    check_ranges("evaluate", config)
    if first_init_id < 0:
        raise InputError(f"the first init id is {first_init_id}; it must not be negative")
    specs = {}
    for task in config.tasks:
        env = make_env(task, sim)
        specs[task] = env.spec
        env.close()
    if len({spec.metric for spec in specs.values()}) > 1:
        raise InputError(f"tasks {', '.join(specs)} do not share one metric: evaluate them apart")
    init_ids = range(first_init_id, first_init_id + config.episodes)
    keys = sorted(EpisodeKey(task, init_id, config.seed) for task in config.tasks for init_id in init_ids)
    return EvaluationPlan(keys=tuple(keys), specs=specs, sim=sim, replan=config.replan)


def load_plan(path: Path) -> EvaluationPlan:
    """Read a plan file. Raises InputError when it is missing, not a plan, or was edited after it was made."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        plan = _parse(content)
    except FileNotFoundError as error:
        raise InputError(f"no evaluation plan at {path}") from error
    except (OSError, ValueError, TypeError, KeyError, StopIteration) as error:
        raise InputError(f"{path} is not an evaluation plan ({error}); make one with `vlarge eval`") from error
    if content.get("plan_hash") != plan.plan_hash():
        raise InputError(f"{path} does not match its own plan_hash: it was edited; make a new plan")
    return plan


def write_atomically(path: Path, text: str) -> None:
    """The file is there whole, or as it was."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _parse(content: dict[str, Any]) -> EvaluationPlan:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, this version reads {FORMAT}")
    keys = tuple(EpisodeKey(str(task), int(init_id), int(seed)) for task, init_id, seed in content["keys"])
    if not keys:
        raise ValueError("it has no episode")
    if list(keys) != sorted(set(keys)):
        raise ValueError("its keys are not sorted, or one is there twice")
    specs = {task: _parse_spec(fields) for task, fields in content["specs"].items()}
    if {key.task for key in keys} != set(specs):
        raise ValueError("its keys and its specs name different tasks")
    sim = SimConfig(**{**content["sim"], "cameras": tuple(content["sim"]["cameras"])})
    return EvaluationPlan(keys=keys, specs=specs, sim=sim, replan=int(content["replan"]))


def _parse_spec(fields: dict[str, Any]) -> EnvSpec:
    fields = {name: value for name, value in fields.items() if name != "hash"}
    fields["cameras"] = {key: tuple(size) for key, size in fields["cameras"].items()}
    for name in ("state_names", "action_names", "action_low", "action_high"):
        fields[name] = tuple(fields[name])
    return EnvSpec(**fields)


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
