"""The processes that save and load together: what goes wrong on one of them, all of them raise, with one text."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from vlarge.contracts import InputError
from vlarge.train.checkpoint.reasons import reason_of
from vlarge.train.health.lost import losing_peers


@dataclass(frozen=True)
class _Failure:
    text: str
    is_input: bool  # the user's or the machine's, and not a mistake of ours

    def throw(self) -> NoReturn:
        raise InputError(self.text) if self.is_input else RuntimeError(self.text)


class Peers:
    """Collectives over all processes on a gloo group of their own, so that they never meet those of training.

    To be made by all processes at once; without a process group this one is alone. One thread at a time may use it.
    A process that does not come within `timeout_s` seconds, or died, is an InputError on the others.
    """

    def __init__(self, timeout_s: float) -> None:
        self._group = None
        self.rank, self.size = 0, 1
        if dist.is_initialized():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def reduce[T, R](self, own: Callable[[], T], combine: Callable[[list[T]], R]) -> R:
        """What the main process makes of every process's own, told to all."""
        answer = self._combined(own, combine)
        if self._group is not None:
            box = [answer]
            self._together(lambda: dist.broadcast_object_list(box, src=0, group=self._group))
            answer = box[0]
        return _unwrapped(answer)

    def deal[T, R](self, own: Callable[[], T], combine: Callable[[list[T]], list[R]]) -> R:
        """Likewise, where the main process makes one answer for each."""
        answers = self._combined(own, combine)
        if self._group is None:
            return _unwrapped(answers)[0]
        hands = answers if not isinstance(answers, _Failure) else [answers] * self.size
        box: list[Any] = [None]
        self._together(lambda: dist.scatter_object_list(box, hands if self.is_main else None, src=0, group=self._group))
        return _unwrapped(box[0])

    def _combined(self, own: Callable[[], Any], combine: Callable[[list[Any]], Any]) -> Any:
        """On the main process the answer, or the first failure; nothing on the others."""
        said = [self._attempt(own, f" (process {self.rank})" if self.size > 1 else "")]
        if self._group is not None:
            gathered: list[Any] | None = [None] * self.size if self.is_main else None
            self._together(lambda: dist.gather_object(said[0], gathered, dst=0, group=self._group))
            if gathered is None:
                return None
            said = gathered
        failures = [each for each in said if isinstance(each, _Failure)]
        return failures[0] if failures else self._attempt(lambda: combine(said))

    def _attempt(self, work: Callable[[], Any], who: str = "") -> Any:
        """A failure is an answer too: the other processes wait for one."""
        try:
            return work()
        except Exception as error:
            if why := reason_of(error):
                return _Failure(why + who, is_input=True)
            return _Failure(f"{traceback.format_exc()}{who}", is_input=False)

    def _together(self, collective: Callable[[], None]) -> None:
        with losing_peers():
            collective()


def _unwrapped(answer: Any) -> Any:
    if isinstance(answer, _Failure):
        answer.throw()
    return answer
