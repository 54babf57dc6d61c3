"""What every adapter checks in the same way: keys, settings and actions."""

from __future__ import annotations

import zlib

import numpy as np

from vlarge.contracts import EnvSpec, EpisodeKey, InputError
from vlarge.sim.config import SimConfig

RENDER_QUALITIES = ("fast", "full")
MAX_IMAGE_SIZE = 2048


def episode_seed(key: EpisodeKey) -> int:
    """A 32-bit number that depends on the key only; neighbouring keys, and other tasks, give unrelated numbers."""
    if key.init_id < 0 or key.seed < 0:
        raise InputError(f"episode key {tuple(key)}: init_id and seed must not be negative")
    return int(np.random.SeedSequence([key.seed, key.init_id, zlib.crc32(key.task.encode())]).generate_state(1)[0])


def check_key(key: EpisodeKey, spec: EnvSpec) -> None:
    if key.task != spec.task:
        raise InputError(f"episode key of task {key.task!r} given to an environment of task {spec.task!r}")


def checked_action(action_A: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The action as float32, clipped to the spec's range. Raises InputError on a wrong shape, NaN or infinity."""
    action_A = np.asarray(action_A, dtype=np.float32)
    if action_A.shape != (spec.action_dim,):
        raise InputError(f"action of shape {action_A.shape} given to {spec.task}, which takes ({spec.action_dim},)")
    if not np.isfinite(action_A).all():
        raise InputError(f"action given to {spec.task} is not finite: {action_A.tolist()}")
    low_A, high_A = (np.array(bounds, dtype=np.float32) for bounds in (spec.action_low, spec.action_high))
    return np.clip(action_A, low_A, high_A)


def check_config(config: SimConfig) -> None:
    if config.render_quality not in RENDER_QUALITIES:
        raise InputError(f"sim.render_quality is {config.render_quality!r}; known: {', '.join(RENDER_QUALITIES)}")
    if not 1 <= config.image_size <= MAX_IMAGE_SIZE:
        raise InputError(f"sim.image_size is {config.image_size}; it must be between 1 and {MAX_IMAGE_SIZE}")
    if config.horizon < 0:
        raise InputError(
            f"sim.horizon is {config.horizon}; give a number of control steps, or 0 for the simulator's own"
        )
    if not config.cameras or len(set(config.cameras)) != len(config.cameras):
        raise InputError(f"sim.cameras is {list(config.cameras)}; name at least one camera, each once")
