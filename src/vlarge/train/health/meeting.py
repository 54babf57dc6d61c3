"""How the processes of one start find each other in a store that may hold what an earlier start left.

torchrun keeps its store when it starts a group again, and torch's process groups use the same keys each time: a process
that is faster than its peer then reads the address of the dead one, and hangs or fails. So the processes agree on a
name for this start first, and everything of theirs lies under it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from vlarge.contracts import InputError

POLL_S = 0.05
NAMED_RANKS = 8
GUEST_S = 5.0  # longer than rank 0 waits, which knows who is missing


class Missing(InputError):
    """Some processes have not come in time."""


@dataclass(frozen=True)
class Meeting:
    """launch: a name that all starts of one torchrun share. store: where only the processes of this start write."""

    launch: str
    store: dist.Store


def meet(store: dist.Store, rank: int, size: int, timeout_s: float) -> Meeting:
    """Wait for the other processes. All of them call it. Raises Missing after `timeout_s`, with who is missing.

    Every process says hello with a word of its own; rank 0 invites each by the word that it read, and begins once all
    have accepted this same invitation. A word that a dead process left is never accepted.
    """
    base = dist.PrefixStore("vlarge", store)
    deadline_s = time.monotonic() + timeout_s
    word = secrets.token_hex(8)
    base.set(f"hello/{rank}", word)
    name = _host(base, size, deadline_s) if rank == 0 else _guest(base, rank, word, deadline_s)
    launch = base.compare_set("launch", "", name).decode()
    return Meeting(launch, dist.PrefixStore(f"vlarge/{name}", store))


def _host(store: dist.Store, size: int, deadline_s: float) -> str:
    hellos, answers = ([f"{key}/{rank}" for rank in range(size)] for key in ("hello", "accepted"))
    invited: list[str] = []
    name = ""

    def all_accepted() -> bool:
        nonlocal invited, name
        if not store.check(hellos):
            return False
        if (words := _read(store, hellos)) != invited:
            invited, name = words, secrets.token_hex(8)
            for rank, word in enumerate(words):
                store.set(f"invitation/{rank}", f"{word} {name}")
            store.set(answers[0], name)
        return store.check(answers) and set(_read(store, answers)) == {name}

    def missing() -> list[int]:
        silent = [rank for rank, key in enumerate(hellos) if not store.check([key])]
        return silent or [rank for rank, key in enumerate(answers) if not _is(store, key, name)]

    _poll(all_accepted, missing, deadline_s)
    store.set("begun", name)
    return name


def _guest(store: dist.Store, rank: int, word: str, deadline_s: float) -> str:
    name = ""

    def has_begun() -> bool:
        nonlocal name
        if store.check([f"invitation/{rank}"]):
            invited, _, offered = store.get(f"invitation/{rank}").decode().partition(" ")
            if invited == word and offered != name:
                name = offered
                store.set(f"accepted/{rank}", name)
        return bool(name) and _is(store, "begun", name)

    _poll(has_begun, lambda: [0], deadline_s + GUEST_S)
    return name


def _poll(done: Callable[[], bool], missing: Callable[[], list[int]], deadline_s: float) -> None:
    while not done():
        if time.monotonic() > deadline_s:
            ranks = missing()
            named = ", ".join(map(str, ranks[:NAMED_RANKS])) + ", …" * (len(ranks) > NAMED_RANKS)
            raise Missing(f"not at the start of the run in time: rank {named}; see what became of it")
        time.sleep(POLL_S)


def _is(store: dist.Store, key: str, value: str) -> bool:
    return store.check([key]) and store.get(key).decode() == value


def _read(store: dist.Store, keys: list[str]) -> list[str]:
    return [value.decode() for value in store.multi_get(keys)]
