"""Faults of a dataset: each is named once, by episode and file, when the dataset is opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from vlarge.contracts import InputError

if TYPE_CHECKING:
    from vlarge.data.index import Dataset

Action = Literal["report", "quarantine", "refuse"]


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a dataset.

    kind: a name for the fault, whatever the format. file: relative to the dataset.
    action: "report" (read all the same), "quarantine" (the episode is left out) or "refuse" (no training with it).
    """

    kind: str
    action: Action
    episode: int | None
    file: str
    detail: str

    def __str__(self) -> str:
        where = "" if self.episode is None else f"episode {self.episode}, "
        return f"{self.kind}: {where}{self.file}: {self.detail}"


class Refused(InputError):
    """A dataset that cannot be opened at all; `fault` says the same in parts."""

    def __init__(self, root: object, kind: str, file: str, detail: str) -> None:
        self.fault = Fault(kind, "refuse", None, file, detail)
        super().__init__(f"{root}: {file}: {detail}")


class BrokenFile(InputError):
    """A file that cannot be read: every episode in it is quarantined, under this kind."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        self.detail = detail
        super().__init__(detail)


class Unreachable(InputError):
    """A store that does not answer. It stops the run: no sample is ever replaced for it."""


class FaultLog:
    """Collects faults while a dataset is indexed. An episode is quarantined at most once, for its first fault."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._out: set[int] = set()

    def report(self, kind: str, file: str, detail: str, episode: int | None = None) -> None:
        self._faults.append(Fault(kind, "report", episode, file, detail))

    def leave_out(self, episode: int, kind: str, file: str, detail: str, action: Action = "quarantine") -> None:
        if episode not in self._out:
            self._out.add(episode)
            self._faults.append(Fault(kind, action, episode, file, detail))

    def is_out(self, episode: int) -> bool:
        return episode in self._out

    def faults(self, excluded: Iterable[int] = ()) -> tuple[Fault, ...]:
        """All of them, without those of episodes that the user left out anyway."""
        ignored = set(excluded)
        return tuple(f for f in self._faults if f.episode not in ignored)


@dataclass(frozen=True)
class Span:
    """The frames [first, first + length) of a video that an episode says are its own."""

    episode: int
    first: int
    length: int

    @property
    def stop(self) -> int:
        return self.first + self.length


def misplaced_spans(spans: Sequence[Span]) -> list[Span]:
    """Which spans of one video are wrong, given that no two episodes share a frame.

    Episodes lie one after the other. Where two overlap, those that do not start where the lengths before them add up to
    are to blame; when that clears both, both are.
    """
    ordered = sorted(spans, key=lambda s: s.episode)
    expected, moved = 0, set()
    for span in ordered:
        if span.first != expected:
            moved.add(span)
        expected += span.length
    wrong: set[Span] = set()
    by_start = sorted(spans, key=lambda s: (s.first, s.episode))
    for left, right in pairwise(by_start):
        if left.stop > right.first:
            wrong |= {left, right} & moved or {left, right}
    return [s for s in ordered if s in wrong]


def require_trainable(dataset: Dataset) -> None:
    """Raise InputError, in one line, when a dataset can be looked at but not trained on."""
    refused = [f for f in dataset.faults if f.action == "refuse"]
    if refused:
        numbers = ",".join(str(n) for n in sorted({f.episode for f in refused if f.episode is not None}))
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        remedy = f"mend the data or leave it out with --data.exclude_episodes {numbers}"
        raise InputError(f"{dataset.root}: {refused[0]}{more}; {remedy}")
    if not dataset.num_frames:
        why = f"; the first of {len(dataset.faults)} faults: {dataset.faults[0]}" if dataset.faults else ""
        raise InputError(f"{dataset.root}: no episode to train on{why}")


def describe_left_out(faults: Iterable[Fault]) -> list[str]:
    """One line per kind of quarantine: "97 episodes left out (partial_download): 0-9, 11-28, 30-81, 83-99"."""
    by_kind: dict[str, list[int]] = {}
    for fault in faults:
        if fault.action == "quarantine" and fault.episode is not None:
            by_kind.setdefault(fault.kind, []).append(fault.episode)
    return [
        f"{len(episodes)} {'episode' if len(episodes) == 1 else 'episodes'} left out ({kind}): {_as_ranges(episodes)}"
        for kind, episodes in by_kind.items()
    ]


def _as_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as "0-9, 11, 13-14"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
