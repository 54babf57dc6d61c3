"""A thread beside the training loop that says what this process does, and names who keeps the others waiting.

Beats go through the store that the processes met at, never through a collective: it is the collectives that hang. The
lowest rank that gives signs of life looks at all beats and speaks; the next one takes over from one that is silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from vlarge.train.config import HealthConfig
from vlarge.train.health.events import Events
from vlarge.train.health.pulse import Beat, Pulse
from vlarge.train.health.stalls import Notice, Stalls
from vlarge.train.parallel.world import World

STORE_S = 10.0  # a store that takes longer for one answer is gone


class Watch:
    """One process's side. `look` is one round of it, for the thread to repeat."""

    def __init__(self, pulse: Pulse, store: dist.Store, rank: int, size: int, beat_s: float, silent_s: float) -> None:
        self._pulse, self._rank, self._size = pulse, rank, size
        self._store = dist.PrefixStore("beats", store)
        self._spoken: set[int] = set()  # ranks whose key is there: asking for another one would wait for it
        self._stalls = Stalls(beat_s, silent_s)
        self._number, self._silent_s, self._spoke_s = 0, silent_s, time.monotonic()

    def look(self) -> list[Notice]:
        """Say what this process does; what is new of all of them, if it is this one's turn to say so."""
        self.speak()
        notices: list[Notice] = []
        for rank in range(self._rank):
            notices += self._stalls.hear(self._beats([rank]))
            if not self._stalls.is_silent(rank):
                return notices
        notices += self._stalls.hear(self._beats(range(self._rank, self._size)))
        return notices + self._stalls.judge()

    def speak(self, *, left: bool = False) -> None:
        now_s = time.monotonic()
        if now_s - self._spoke_s > self._silent_s:  # others have called it silent
            self._pulse.excuse()
        self._spoke_s = now_s
        self._number += 1
        self._store.set(str(self._rank), self._pulse.beat(self._number, left=left).to_json())

    def _beats(self, ranks: Iterable[int]) -> dict[int, Beat]:
        asked = list(ranks)
        self._spoken.update(rank for rank in asked if rank not in self._spoken and self._store.check([str(rank)]))
        spoken = [rank for rank in asked if rank in self._spoken]
        if not spoken:
            return {}
        texts = self._store.multi_get([str(rank) for rank in spoken])
        return {rank: Beat.from_json(text) for rank, text in zip(spoken, texts, strict=True)}


@contextmanager
def watching(world: World, events: Events, config: HealthConfig) -> Iterator[None]:
    """Watch while the block runs; what is found goes to `events`."""
    world.pulse.stall_s = config.stall_s
    store = world.connection()  # of its own: a wait at another's would keep the beats from being sent
    store.set_timeout(timedelta(seconds=STORE_S))
    watch = Watch(world.pulse, store, world.rank, world.size, config.beat_s, config.stall_s)
    ending = threading.Event()

    def repeat() -> None:
        try:
            while not ending.wait(config.beat_s):
                for notice in watch.look():
                    _say(notice, events)
            watch.speak(left=True)
        except dist.DistError as error:
            if not ending.is_set():  # where the run ends, so does whoever holds the store
                events.tell(f"nobody is watched any more: the processes' store does not answer ({error})")

    thread = threading.Thread(target=repeat, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(STORE_S)


def _say(notice: Notice, events: Events) -> None:
    events.write(
        notice.text,
        show=True,
        rank=notice.ranks[0],
        kind="stall over" if notice.over else "stall",
        ranks=notice.ranks,
        section=notice.section,
        seconds=round(notice.seconds, 1),
        detail=notice.detail,
    )
