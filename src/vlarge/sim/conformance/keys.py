"""What a key decides: the start, and with the actions all that follows (law E1)."""

from __future__ import annotations

from vlarge.contracts import EpisodeKey
from vlarge.sim.conformance.playing import (
    NUM_STEPS,
    Broken,
    Trial,
    actions,
    digest,
    elsewhere,
    keys,
    play,
    require_equal,
    started,
)

NUM_KEYS = 6


def same_start(trial: Trial) -> None:
    """A key shows the same first observation again, after other episodes and in a new environment."""
    with trial.env() as env:
        key, other = keys(env, 2)
        first = started(env, key)
        again = started(env, key)
        play(env, other, NUM_STEPS)
        after = started(env, key)
    with trial.env() as env:
        new = started(env, key)
    for text, found in (("at once again", again), ("after another episode", after), ("in a new environment", new)):
        require_equal(first, found, f"key {tuple(key)} {text}")


def same_in_another_process(trial: Trial) -> None:
    """A key and the same actions show the same in another process."""
    own, theirs = _digests(trial), elsewhere(_digests, trial)
    if own != theirs:
        step = next(i for i, (a, b) in enumerate(zip(own, theirs, strict=True)) if a != b)
        raise Broken(f"another process shows something else at step {step} of the same key and actions")


def _digests(trial: Trial) -> list[str]:
    with trial.env() as env:
        return [digest(seen) for seen in play(env, keys(env, 1)[0], NUM_STEPS)]


def same_actions_same_episode(trial: Trial) -> None:
    """A key and the same actions show the same, whether or not the policy looks in between."""
    with trial.env() as env:
        key = keys(env, 1)[0]
        seen = play(env, key, NUM_STEPS)
        again = play(env, key, NUM_STEPS)
        env.reset(key)
        for action_A in actions(env, len(seen) - 1):
            env.step(action_A)
        blind = env.observe()
    for step, (one, two) in enumerate(zip(seen, again, strict=True)):
        require_equal(one, two, f"step {step} of the same key and actions")
    require_equal(seen[-1], blind, f"step {len(seen) - 1} of an episode that was not looked at before:")


def keys_differ(trial: Trial) -> None:
    """Other init ids and other seeds begin otherwise."""
    with trial.env() as env:
        task = env.spec.task
        several = [EpisodeKey(task, i, 0) for i in range(NUM_KEYS)] + [EpisodeKey(task, 0, s) for s in (1, 2)]
        begun = {digest(started(env, key)): key for key in several}
    if len(begun) < len(several):
        raise Broken(f"{len(several)} keys show only {len(begun)} different starts")
