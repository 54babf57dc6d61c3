"""One episode: look, act for a chunk, look again, until success or the horizon."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vlarge.contracts import Env, EpisodeKey, Observation, Policy
from vlarge.policy.chunks import ChunkQueue

SUCCESS = "success"
FAILURE = "failure"
INFRA_ERROR = "infra_error"

NOTHING_SEEN = Observation(images={}, state=np.zeros(0, dtype=np.float32), task="")


@dataclass(frozen=True)
class EpisodeResult:
    """What the key and the policy decide. success_at_reset: the first state already counted as success."""

    outcome: str
    num_steps: int
    success_at_reset: bool | None  # None: the episode never started


class Watcher(Protocol):
    """Sees every control step before it is taken, and the state at the end."""

    def watch(self, step: int, observe: Callable[[], Observation]) -> None: ...


def run_episode(env: Env, policy: Policy, key: EpisodeKey, *, replan: int, watchers: list[Watcher]) -> EpisodeResult:
    """Play one episode. replan: actions executed of each chunk before the policy looks again (0: all of it).

    Raises whatever environment and policy raise, and RuntimeError on a bad chunk of actions.
    """
    env.reset(key)
    queue = ChunkQueue(replan)
    view = _View(env)
    # Rendering is most of an episode's cost, and the built-in policies do not look.
    look = (lambda: NOTHING_SEEN) if getattr(policy, "blind", False) else view.observe
    step = 0
    while True:
        for watcher in watchers:
            watcher.watch(step, view.observe)
        if queue.empty:
            chunk_SA = policy.infer(look(), noise_key(key, step))
            queue.fill(_checked_chunk(chunk_SA, policy, env, step))
        result = env.step(queue.next())
        view.forget()
        step += 1
        if result.success and env.spec.metric == "success_once":
            break
        # Not every simulator truncates by itself.
        if result.is_last or step >= env.spec.horizon:
            break
    for watcher in watchers:
        watcher.watch(step, view.observe)
    return EpisodeResult(SUCCESS if result.success else FAILURE, step, env.success_at_reset)


def noise_key(key: EpisodeKey, step: int) -> tuple[int, int, int, int]:
    """What the policy's noise depends on at this step: never on worker, attempt or batch."""
    return key.seed, key.init_id, zlib.crc32(key.task.encode()), step


class _View:
    """Renders a state at most once, however many look at it."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._observation: Observation | None = None

    def observe(self) -> Observation:
        if self._observation is None:
            self._observation = self._env.observe()
            if not np.isfinite(self._observation.state).all():
                raise RuntimeError(f"{self._env.spec.task} shows NaN or infinity in its state")
        return self._observation

    def forget(self) -> None:
        self._observation = None


def _checked_chunk(chunk_SA: np.ndarray, policy: Policy, env: Env, step: int) -> np.ndarray:
    chunk_SA = np.asarray(chunk_SA)
    if chunk_SA.ndim != 2 or len(chunk_SA) == 0 or chunk_SA.shape[1] != env.spec.action_dim:
        expected = f"[{policy.action_horizon}, {env.spec.action_dim}]"
        raise RuntimeError(f"policy {policy.name} returned actions of shape {chunk_SA.shape} for {expected}")
    if not np.isfinite(chunk_SA).all():
        raise RuntimeError(f"policy {policy.name} returned NaN or infinity at step {step} of {env.spec.task}")
    return chunk_SA
