"""Playing an environment the same way each time, and telling whether it showed the same."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from vlarge.contracts import Env, EpisodeKey, Observation

PROCESS_S = 1800.0  # for hundreds of resets of a slow simulator
NUM_STEPS = 12  # played where a few say as much as many

Make = Callable[[], Env]


class Broken(Exception):
    """A promise that is not kept, in one line."""


class Skipped(Exception):
    """Why a check says nothing about this environment."""


@dataclass(frozen=True)
class Trial:
    """What the checks work with. make: a new environment, picklable, so that another process can call it too."""

    make: Make
    num_cycles: int = 50
    num_resets: int = 200

    @contextmanager
    def env(self) -> Iterator[Env]:
        env = self.make()
        try:
            yield env
        finally:
            env.close()


def elsewhere[T](work: Callable[[Trial], T], trial: Trial) -> T:
    """What it returns in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, trial).result(timeout=PROCESS_S)


def keys(env: Env, num: int) -> list[EpisodeKey]:
    return [EpisodeKey(env.spec.task, number, 0) for number in range(num)]


def actions(env: Env, num: int) -> list[np.ndarray]:
    """Random ones over the whole range, always the same."""
    rng = np.random.default_rng(0)
    spec = env.spec
    return [rng.uniform(spec.action_low, spec.action_high).astype(np.float32) for _ in range(num)]


def started(env: Env, key: EpisodeKey) -> Observation:
    env.reset(key)
    return env.observe()


def play(env: Env, key: EpisodeKey, num_steps: int) -> list[Observation]:
    """What is seen at the start and after each of so many steps, or fewer where the episode ends before."""
    return [started(env, key), *gone_on(env, num_steps)]


def gone_on(env: Env, num_steps: int) -> list[Observation]:
    """What is seen after each of so many steps, or fewer where the episode ends before."""
    seen: list[Observation] = []
    for action_A in actions(env, num_steps):
        is_last = env.step(action_A).is_last
        seen.append(env.observe())
        if is_last:
            break
    return seen


def digest(seen: Observation) -> str:
    text = hashlib.sha256(seen.state.tobytes() + seen.task.encode())
    for name in sorted(seen.images):
        text.update(name.encode() + seen.images[name].tobytes())
    return text.hexdigest()


def distance(one: Observation, two: Observation) -> float:
    """Of states and pictures, each by its own scale."""
    pictures = [np.abs(one.images[name].astype(float) - two.images[name]).mean() / 255 for name in one.images]
    return float(np.abs(one.state - two.state).sum() + sum(pictures))


def require_equal(one: Observation, two: Observation, when: str) -> None:
    if not np.array_equal(one.state, two.state):
        apart = np.abs(one.state.astype(float) - two.state).max() if one.state.shape == two.state.shape else np.inf
        raise Broken(f"{when} has another state, by up to {apart:.2g}")
    for name, image in one.images.items():
        if not np.array_equal(image, two.images[name]):
            raise Broken(f"{when} has another picture of {name}")
    if one.task != two.task:
        raise Broken(f"{when} has another instruction")
