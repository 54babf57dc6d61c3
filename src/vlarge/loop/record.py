"""Demonstrations from scripted experts, written as a LeRobot v3.0 dataset.

Which episodes are in it, and every byte, depends on the arguments only: an episode is decided by its key, failed ones
are replaced by the next keys of the same task, and episodes are written in key order, on any number of workers.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from vlarge.contracts import Env, EnvSpec, EpisodeKey, InputError
from vlarge.data.formats.write import LeRobotWriter
from vlarge.sim import make_env
from vlarge.sim.config import SimConfig
from vlarge.sim.supervisor import Beat, Handler, Outcome, Supervisor

SILENCE_S = 60.0
MAX_KEYS_PER_EPISODE = 4  # an expert that fails more often than this is not worth recording
MAX_LOST_PER_KEY = 3


@dataclass(frozen=True)
class RecordedEpisode:
    """states [n, S], actions [n, A] float32; images: camera key -> uint8 [n, H, W, 3]. actions are the expert's own."""

    key: EpisodeKey
    instruction: str
    states: np.ndarray
    actions: np.ndarray
    images: dict[str, np.ndarray]


@dataclass(frozen=True)
class RecordSettings:
    """tail_steps: steps recorded after the first success.

    action_noise: standard deviation of what is added to executed actions, in units of the action (0: nothing). The
    recorded action is the expert's without noise: the data then show how to recover from errors (DART, Laskey et al.,
    2017). noise_hold_steps: steps for which one draw is held. White noise averages out at a high control rate; a held
    one pushes the hand off its way, so that the expert's answer depends on where the object is, all along the episode.
    """

    sim: SimConfig
    tail_steps: int
    action_noise: float
    noise_hold_steps: int


class _ExpertEnv(Env, Protocol):
    def expert(self) -> np.ndarray: ...


def record(
    tasks: Sequence[str],
    sim: SimConfig,
    out: Path,
    *,
    episodes_per_task: int,
    seed: int,
    first_init_id: int = 0,
    workers: int = 2,
    tail_steps: int = 4,
    action_noise: float = 0.0,
    noise_hold_steps: int = 1,
    on_episode: Callable[[RecordedEpisode], None] = lambda episode: None,
) -> None:
    """Record successful expert episodes of keys (task, first_init_id + i, seed) to a new dataset folder `out`.

    `on_episode` is told of each episode as it is written. Raises InputError for an unknown task, one without an
    expert, an `out` that exists, or an expert that fails too often; nothing is left at `out` then.
    """
    settings = RecordSettings(sim, tail_steps, action_noise, noise_hold_steps)
    _check(tasks, episodes_per_task, seed, first_init_id, settings)
    specs = _specs(tasks, sim)
    spec = specs[tasks[0]]
    queue = _KeyQueue(tasks, episodes_per_task, seed, first_init_id)
    writer = LeRobotWriter(
        out,
        fps=spec.control_hz,
        cameras=spec.cameras,
        state_names=spec.state_names,
        action_names=spec.action_names,
        robot_type=spec.task.partition("/")[0],
    )
    with writer, Supervisor(_setup, settings, num_workers=workers, silence_s=SILENCE_S) as supervisor:
        for outcome in supervisor.run(queue.next_key):
            for episode in queue.settle(outcome):
                writer.add_episode(episode.instruction, episode.states, episode.actions, episode.images)
                on_episode(episode)
        writer.finish()


class _KeyQueue:
    """Hands out keys, replaces those that failed, and gives episodes back in key order, task after task."""

    def __init__(self, tasks: Sequence[str], episodes_per_task: int, seed: int, first_init_id: int) -> None:
        self._tasks = list(tasks)
        self._seed = seed
        self._max_init_id = first_init_id + episodes_per_task * MAX_KEYS_PER_EPISODE
        self._next_init_ids = [first_init_id + episodes_per_task for _ in tasks]
        init_ids = range(first_init_id, first_init_id + episodes_per_task)
        # Sorted by task: few environments are open at a time, and few episodes wait for an earlier one.
        self._open = [(task, init_id) for task in range(len(tasks)) for init_id in init_ids]
        self._order = list(self._open)  # a heap of the keys whose episodes are still to be given back
        self._ended: dict[tuple[int, int], RecordedEpisode | None] = {}
        self._num_lost: dict[tuple[int, int], int] = {}

    def next_key(self) -> EpisodeKey | None:
        if not self._open:
            return None
        task, init_id = heapq.heappop(self._open)
        return EpisodeKey(self._tasks[task], init_id, self._seed)

    def settle(self, outcome: Outcome) -> list[RecordedEpisode]:
        """Note how a key ended; returns the episodes that can be written now."""
        key: EpisodeKey = outcome.job
        place = self._tasks.index(key.task), key.init_id
        if outcome.lost:
            self._retry(place, outcome.error)
        elif outcome.error:
            raise RuntimeError(f"recording {tuple(key)} failed:\n{outcome.error}")
        else:
            self._ended[place] = outcome.result
            if outcome.result is None:
                self._replace(place[0])
        return self._ready()

    def _retry(self, place: tuple[int, int], error: str) -> None:
        self._num_lost[place] = self._num_lost.get(place, 0) + 1
        if self._num_lost[place] >= MAX_LOST_PER_KEY:
            raise RuntimeError(
                f"recording {self._tasks[place[0]]} init_id {place[1]} lost {MAX_LOST_PER_KEY}x: {error}"
            )
        heapq.heappush(self._open, place)

    def _replace(self, task: int) -> None:
        init_id = self._next_init_ids[task]
        if init_id >= self._max_init_id:
            raise InputError(f"the expert of {self._tasks[task]} fails too often to record it; leave this task out")
        self._next_init_ids[task] += 1
        heapq.heappush(self._open, (task, init_id))
        heapq.heappush(self._order, (task, init_id))

    def _ready(self) -> list[RecordedEpisode]:
        ready = []
        while self._order and self._order[0] in self._ended:
            episode = self._ended.pop(heapq.heappop(self._order))
            if episode is not None:
                ready.append(episode)
        return ready


def _setup(settings: RecordSettings) -> Handler:
    """What a worker process does: keep the environment of the task at hand, play the expert for each key."""
    open_envs: dict[str, _ExpertEnv] = {}

    def play(key: EpisodeKey, beat: Beat) -> RecordedEpisode | None:
        if key.task not in open_envs:
            for task in list(open_envs):
                open_envs.pop(task).close()
            open_envs[key.task] = cast(_ExpertEnv, make_env(key.task, settings.sim))
        return play_expert(open_envs[key.task], key, settings, beat)

    return play


def play_expert(env: _ExpertEnv, key: EpisodeKey, settings: RecordSettings, beat: Beat) -> RecordedEpisode | None:
    """The expert's episode up to `tail_steps` after its first success; None when it does not succeed."""
    noise = np.random.default_rng([key.seed, key.init_id, zlib.crc32(key.task.encode()), zlib.crc32(b"action_noise")])
    rows: list[tuple[Any, np.ndarray]] = []
    env.reset(key)
    steps_left = None
    while steps_left is None or steps_left > 0:
        beat()
        action_A = env.expert()
        if len(rows) % settings.noise_hold_steps == 0:
            shift_A = noise.normal(0.0, 1.0, action_A.shape) * settings.action_noise
        rows.append((env.observe(), action_A))
        step = env.step((action_A + shift_A).astype(np.float32))
        if steps_left is not None:
            steps_left -= 1
        elif step.success:
            steps_left = settings.tail_steps
        if step.is_last:
            break
    if steps_left is None:
        return None
    return RecordedEpisode(
        key=key,
        instruction=env.spec.instruction,
        states=np.stack([observation.state for observation, _ in rows]),
        actions=np.stack([action_A for _, action_A in rows]).astype(np.float32),
        images={name: np.stack([observation.images[name] for observation, _ in rows]) for name in env.spec.cameras},
    )


def _specs(tasks: Sequence[str], sim: SimConfig) -> dict[str, EnvSpec]:
    """The tasks' specs; raises InputError unless one dataset can hold them all."""
    specs = {}
    for task in tasks:
        env = make_env(task, sim)
        specs[task] = env.spec
        env.close()
        if not hasattr(env, "expert"):
            raise InputError(f"{task} has no scripted expert to record")
    first = specs[tasks[0]]
    for task, spec in specs.items():
        for name in ("cameras", "state_names", "action_names", "control_hz"):
            if getattr(spec, name) != getattr(first, name):
                raise InputError(f"{task} and {tasks[0]} differ in {name}: record them as two datasets")
    return specs


def _check(
    tasks: Sequence[str], episodes_per_task: int, seed: int, first_init_id: int, settings: RecordSettings
) -> None:
    if not tasks or len(set(tasks)) != len(tasks):
        raise InputError(f"tasks to record: name at least one, each once (given: {', '.join(tasks) or 'none'})")
    if episodes_per_task < 1:
        raise InputError(f"episodes per task is {episodes_per_task}; at least one is needed")
    if min(seed, first_init_id, settings.tail_steps) < 0 or not 0 <= settings.action_noise < float("inf"):
        raise InputError("seed, first init id, tail steps and action noise must not be negative")
    if settings.noise_hold_steps < 1:
        raise InputError(f"action noise is held for {settings.noise_hold_steps} steps; at least one is needed")
