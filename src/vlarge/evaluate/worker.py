"""What a worker process of an evaluation does: keep one environment and one policy, play the episodes it is given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from vlarge.contracts import Env, EpisodeKey, InputError, Observation, Policy
from vlarge.evaluate.actors import Actor, load_actor
from vlarge.evaluate.episode import EpisodeResult, Watcher, run_episode
from vlarge.evaluate.film import Film, film_name
from vlarge.evaluate.plan import EvaluationPlan
from vlarge.sim import make_env
from vlarge.sim.supervisor import Beat, Handler


@dataclass(frozen=True)
class WorkerSettings:
    """policy: a reference for `actors.load_actor`. videos: the folder films go to."""

    plan: EvaluationPlan
    policy: str
    videos: Path


@dataclass(frozen=True)
class Job:
    """One episode; film: also record it."""

    key: EpisodeKey
    film: bool


def setup(settings: WorkerSettings) -> Handler:
    """Load the policy; returns the function that plays a `Job`."""
    stage = _Stage(settings, load_actor(settings.policy))
    if "torch" in sys.modules:
        # One thread per inference: workers share the cores, and every sum keeps one order.
        sys.modules["torch"].set_num_threads(1)
    return stage.play


class _Stage:
    """Holds the environment of the task at hand; jobs come sorted by task, so it seldom changes."""

    def __init__(self, settings: WorkerSettings, actor: Actor) -> None:
        self._settings = settings
        self._actor = actor
        self._env: Env | None = None
        self._policy: Policy | None = None

    def play(self, job: Job, beat: Beat) -> EpisodeResult:
        """Play one episode. Raises InputError where plan, environment and policy do not fit: no other try would do."""
        env, policy = self._prepare(job.key.task)
        film = Film() if job.film else None
        watchers: list[Watcher] = [_Pulse(beat), *([film] if film else [])]
        try:
            result = run_episode(env, policy, job.key, replan=self._settings.plan.replan, watchers=watchers)
        except Exception as error:
            self._drop()  # whatever state it is in, the next try gets a new one
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        if film:
            film.save(self._settings.videos / film_name(job.key), env.spec.control_hz)
        return result

    def _prepare(self, task: str) -> tuple[Env, Policy]:
        if self._env is None or self._policy is None or self._env.spec.task != task:
            self._drop()
            env = make_env(task, self._settings.plan.sim)
            planned = asdict(self._settings.plan.specs[task])
            changed = [name for name, value in asdict(env.spec).items() if planned[name] != value]
            if changed:
                raise InputError(f"{task} is not as planned, it differs in {', '.join(changed)}: make a new plan")
            self._env, self._policy = env, self._actor(env)
            self._policy.check(env.spec)
        return self._env, self._policy

    def _drop(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = self._policy = None


class _Pulse:
    """A sign of life at every step."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat

    def watch(self, step: int, observe: Callable[[], Observation]) -> None:
        self._beat()
