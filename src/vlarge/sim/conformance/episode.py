"""How an episode goes: its end, its rate, its actions, its success, and going on from a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vlarge.contracts import InputError, Observation
from vlarge.sim.conformance.playing import (
    NUM_STEPS,
    Broken,
    Skipped,
    Trial,
    actions,
    distance,
    gone_on,
    keys,
    play,
    require_equal,
    started,
)

TIME_TOLERANCE = 1e-6  # of a control step


def ends_at_the_horizon(trial: Trial) -> None:
    """Truncated at the horizon, not before, and no step is taken after it."""
    with trial.env() as env:
        key, horizon = keys(env, 1)[0], env.spec.horizon
        env.reset(key)
        ends: list[bool] = []
        for _ in range(horizon):
            step = env.step(np.zeros(env.spec.action_dim, np.float32))
            ends.append(step.truncated)
            if step.terminal:
                raise Skipped(f"it ended by itself after {len(ends)} steps of doing nothing")
        if True not in ends:
            raise Broken(f"is not truncated after {horizon} steps, which the spec says is the horizon")
        if ends.index(True) != horizon - 1:
            raise Broken(f"is truncated after {ends.index(True) + 1} steps, and the spec says {horizon}")
        try:
            env.step(np.zeros(env.spec.action_dim, np.float32))
        except RuntimeError:
            return
        raise Broken("takes a step after it was truncated, instead of asking for a reset with a RuntimeError")


def one_reset_an_episode(trial: Trial) -> None:
    """Success ends nothing by itself: the episode does not begin again, unasked."""
    with trial.env() as env:
        expert: Callable[[], np.ndarray] | None = getattr(env, "expert", None)
        if expert is None:
            raise Skipped("the environment has no expert() that would reach success")
        seen = [started(env, keys(env, 1)[0])]
        for _ in range(env.spec.horizon - 1):
            step = env.step(expert())
            seen.append(env.observe())
            if step.terminal:
                raise Skipped("an episode of it ends by itself with a success or before")
            if step.success:
                break
        else:
            raise Skipped("its expert did not reach success")
        env.step(np.zeros(env.spec.action_dim, np.float32))
        seen.append(env.observe())
    begun, before, at_success, after = seen[0], *seen[-3:]
    for when, one, two in (("with a success", before, at_success), ("after a success", at_success, after)):
        if distance(one, two) > distance(begun, two):
            raise Broken(f"begins again {when}: what it shows then is nearer to its start than to what was before")


def keeps_its_rate(trial: Trial) -> None:
    """Simulated time goes on by one over control_hz with every step, from zero at the reset."""
    with trial.env() as env:
        key = keys(env, 1)[0]
        for _ in range(2):
            env.reset(key)
            if not hasattr(env, "time_s"):
                raise Skipped("the environment has no time_s, simulated seconds since the reset")
            _require_time(env, 0)
            for step, action_A in enumerate(actions(env, NUM_STEPS), 1):
                is_last = env.step(action_A).is_last
                _require_time(env, step)
                if is_last:
                    break


def _require_time(env: Any, num_steps: int) -> None:
    steps = env.time_s * env.spec.control_hz
    if abs(steps - num_steps) > TIME_TOLERANCE * max(num_steps, 1):
        raise Broken(f"{env.time_s:g} s have passed after {num_steps} steps of 1/{env.spec.control_hz:g} s")


def actions_are_checked(trial: Trial) -> None:
    """NaN and a wrong number of values are refused; what is beyond the range is clipped to it."""
    with trial.env() as env:
        key, dim = keys(env, 1)[0], env.spec.action_dim
        env.reset(key)
        for text, action_A in (("NaN", np.full(dim, np.nan)), ("one value too many", np.zeros(dim + 1))):
            try:
                env.step(action_A.astype(np.float32))
            except InputError:
                continue
            raise Broken(f"takes an action with {text}")
        ends: list[Observation] = []
        low_A, high_A = np.array(env.spec.action_low), np.array(env.spec.action_high)
        for given_A in (high_A, high_A + 10 * (high_A - low_A)):
            env.reset(key)
            env.step(given_A.astype(np.float32))
            ends.append(env.observe())
    at_the_end, beyond = ends
    require_equal(at_the_end, beyond, "an action beyond the range, which should be clipped,")


def success_at_reset_is_told(trial: Trial) -> None:
    """Each episode says whether its first state counts as success already."""
    with trial.env() as env:
        for key in keys(env, 3):
            env.reset(key)
            told = getattr(env, "success_at_reset", None)
            if not isinstance(told, bool):
                raise Broken(f"success_at_reset is {told!r} after a reset, and must be True or False")


def snapshots_replay(trial: Trial) -> None:
    """What follows a snapshot follows it again, as often as it is restored, other episodes between."""
    with trial.env() as env:
        if not (hasattr(env, "snapshot") and hasattr(env, "restore")):
            raise Skipped("the environment has no snapshot() and restore(snapshot)")
        kept: Any = env
        key, other = keys(env, 2)
        play(env, key, NUM_STEPS)
        snapshot = kept.snapshot()
        first = gone_on(env, NUM_STEPS)
        for text in ("restored", "restored after another episode"):
            kept.restore(snapshot)
            again = gone_on(env, NUM_STEPS)
            for step, (one, two) in enumerate(zip(first, again, strict=True)):
                require_equal(one, two, f"step {step} after a snapshot was {text}")
            play(env, other, 2)
