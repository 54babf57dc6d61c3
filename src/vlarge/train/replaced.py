"""Samples that could not be read and what stood in their place: counted over the whole run, under an error budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from vlarge.contracts import SampleId
from vlarge.data.service.stream import Limits

Pairs = Sequence[tuple[SampleId, SampleId]]  # each sample, and the last one in its place


class Replaced:
    """Those before this start of the run; what this start adds is asked of its processes."""

    def __init__(self) -> None:
        self._times, self._samples = 0, list[Any]()

    def load(self, text: str) -> None:
        """What `noted` gave, from a checkpoint."""
        before = json.loads(text)
        self._times, self._samples = before["times"], before["samples"]

    def noted(self, said: Sequence[str]) -> str:
        """For a checkpoint: how many times so far, and which. said: `say` of every process."""
        own = [json.loads(text) for text in said]
        pairs = {tuple(bad): used for bad, used in chain(self._samples, *(each for _, each in own))}
        times = self._times + sum(number for number, _ in own)
        return json.dumps({"times": times, "samples": [[[*bad], used] for bad, used in sorted(pairs.items())]})

    def exceed(self, limits: Limits, num_now: int, num_samples: int) -> int:
        """How many there were, if that is too many of so many samples; otherwise 0. num_now: since this start."""
        total = self._times + num_now
        return total if limits.are_exceeded(total, num_samples) else 0


def say(number: int, pairs: Pairs) -> str:
    """One process's part of `Replaced.noted`."""
    return json.dumps([number, pairs])
