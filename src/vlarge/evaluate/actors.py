"""Who acts in an evaluation: a checkpoint, a built-in policy, or a function of the user's that returns a policy."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vlarge.contracts import Env, EnvSpec, InputError, Observation, Policy

Actor = Callable[[Env], Policy]  # the policy that acts in this environment


def load_actor(reference: str) -> Actor:
    """reference: "expert", "zero", "package.module:function" (called without arguments), or a checkpoint's path.

    After a checkpoint's path may stand "#" and the name of the embodiment to act for; without it, the one that fits the
    environment does. Raises InputError when there is no such thing.
    """
    if reference in BUILT_IN:
        return BUILT_IN[reference]
    if not _names_function(reference):
        return _load_checkpoint(reference)
    policy = _call(reference)
    return lambda env: policy


def fingerprint(reference: str) -> str:
    """Changes when the weights behind a checkpoint path change (file name, size or time); "" for anything else.

    Raises InputError when `reference` is neither an existing path, a function nor built in.
    """
    if reference in BUILT_IN or _names_function(reference):
        return ""
    root = Path(_split(reference)[0]).resolve()
    if not root.exists():
        raise InputError(
            f"no policy at {reference}: give a checkpoint folder, {', '.join(BUILT_IN)} or module:function"
        )
    entries = [(str(file.relative_to(root)), file.stat()) for file in sorted(root.rglob("*.safetensors"))]
    text = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in entries])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ExpertPolicy:
    """The simulator's scripted expert, one action at a time. Knows the simulator's state and does not look."""

    name = "expert"
    blind = True
    action_horizon = 1

    def __init__(self, env: Env) -> None:
        self._expert = getattr(env, "expert", None)

    def check(self, spec: EnvSpec) -> None:
        if self._expert is None:
            raise InputError(f"{spec.task} has no scripted expert")

    def infer(self, observation: Observation, noise_key: Sequence[int]) -> np.ndarray:
        assert self._expert is not None
        action_A: np.ndarray = self._expert()
        return action_A[None]


class ZeroPolicy:
    """Does nothing: what it achieves needs no policy."""

    name = "zero"
    blind = True
    action_horizon = 1

    def __init__(self, env: Env) -> None:
        self._action_dim = env.spec.action_dim

    def check(self, spec: EnvSpec) -> None: ...

    def infer(self, observation: Observation, noise_key: Sequence[int]) -> np.ndarray:
        return np.zeros((1, self._action_dim), dtype=np.float32)


BUILT_IN: dict[str, Actor] = {"expert": ExpertPolicy, "zero": ZeroPolicy}


def _names_function(reference: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", reference) is not None


def _call(reference: str) -> Policy:
    module, _, function = reference.partition(":")
    try:
        make: Callable[[], Policy] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"policy {reference!r} cannot be imported: {error}") from error
    policy = make()
    if not callable(getattr(policy, "infer", None)):
        raise InputError(f"{reference} returned {type(policy).__name__}, which is no policy (contracts.Policy)")
    return policy


def _load_checkpoint(reference: str) -> Actor:
    from vlarge.policy.load import load_policies, load_policy

    path, embodiment = _split(reference)
    if embodiment:
        policy: Policy = load_policy(path, embodiment=embodiment)
        return lambda env: policy
    policies = load_policies(path)
    return lambda env: _fitting(path, policies, env.spec)


def _split(reference: str) -> tuple[str, str]:
    # A checkpoint's path and the embodiment named after it.
    path, _, embodiment = reference.rpartition("#")
    return (path, embodiment) if path and not Path(reference).exists() else (reference, "")


def _fitting(path: str, policies: Mapping[str, Policy], spec: EnvSpec) -> Policy:
    """The policy whose embodiment fits the environment. Raises InputError when none does, or several do."""
    refused: dict[str, InputError] = {}
    for name, policy in policies.items():
        try:
            policy.check(spec)
        except InputError as error:
            refused[name] = error
    fitting = [name for name in policies if name not in refused]
    if len(fitting) > 1:
        raise InputError(f"{path} fits {spec.task} as {', '.join(fitting)}: say which, as {path}#{fitting[0]}")
    if not fitting:
        raise next(iter(refused.values()))
    return policies[fitting[0]]
