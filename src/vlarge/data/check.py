"""Faults of a dataset: each is named once, by episode and file, when the dataset is opened."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlarge.contracts import InputError

if TYPE_CHECKING:
    from vlarge.data.index import Dataset

Action = Literal["report", "quarantine", "refuse"]


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a dataset.

    kind: a name for the fault, whatever the format. file: relative to the dataset.
    action: "report" (read all the same), "quarantine" (the episode is left out, or of it the samples that touch the
    rows from `frames[0]` to `frames[1]`) or "refuse" (no training with it).
    """

    kind: str
    action: Action
    episode: int | None
    file: str
    detail: str
    frames: tuple[int, int] | None = None

    def __str__(self) -> str:
        where = "" if self.episode is None else f"episode {self.episode}, "
        return f"{self.kind}: {where}{self.file}: {self.detail}"


class Refused(InputError):
    """A dataset that cannot be opened at all; `fault` says the same in parts."""

    def __init__(self, root: object, kind: str, file: str, detail: str) -> None:
        self.fault = Fault(kind, "refuse", None, file, one_line(detail))
        super().__init__(f"{root}: {file}: {self.fault.detail}")


class BrokenFile(InputError):
    """A file that cannot be read: every episode in it is quarantined, under this kind."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        self.detail = one_line(detail)
        super().__init__(self.detail)


def one_line(text: str, most: int = 400) -> str:
    """Text of a library or a file, fit for a message."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]} ..."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """What to add to a message about an unknown name: the nearest known one, or nothing."""
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class Unreachable(InputError):
    """A store that does not answer. It stops the run: no sample is ever replaced for it."""


class FaultLog:
    """Collects faults while a dataset is indexed. An episode is quarantined at most once, for its first fault."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._out: set[int] = set()

    def report(self, kind: str, file: str, detail: str, episode: int | None = None) -> None:
        self._faults.append(Fault(kind, "report", episode, file, detail))

    def leave_out(self, episode: int, kind: str, file: str, detail: str) -> None:
        if episode not in self._out:
            self._out.add(episode)
            self._faults.append(Fault(kind, "quarantine", episode, file, detail))

    def leave_out_frames(self, episode: int, frames: tuple[int, int], kind: str, file: str, detail: str) -> None:
        """Leaves out the samples that touch some of the episode's rows, from frames[0] to frames[1]."""
        self._faults.append(Fault(kind, "quarantine", episode, file, detail, frames))

    def leave_out_file(self, kind: str, file: str, detail: str) -> None:
        """Leaves out episodes whose numbers nobody knows: the file that lists them cannot be read."""
        self._faults.append(Fault(kind, "quarantine", None, file, detail))

    def is_out(self, episode: int) -> bool:
        return episode in self._out

    def faults(self, excluded: Iterable[int] = ()) -> tuple[Fault, ...]:
        """All of them, without those of episodes that the user left out anyway."""
        ignored = set(excluded)
        return tuple(f for f in self._faults if f.episode not in ignored)


def usable_spans(length: int, bad_rows: Sequence[int], action_horizon: int) -> list[tuple[int, int]]:
    """Frames [first, stop) at which a sample may start: its state row and its action window touch no bad row.

    bad_rows: rows of the episode, ascending. The window of frame t is the rows [t, min(t + action_horizon, length)).
    """
    reach = max(1, action_horizon)
    firsts = [0, *(row + 1 for row in bad_rows)]
    stops = [*(row - reach + 1 for row in bad_rows), length]
    return [(first, stop) for first, stop in zip(firsts, stops, strict=True) if first < stop]


def states_rate(dataset: Dataset) -> bool:
    """Whether the dataset says how many frames a second has; otherwise `fps` is only what time is shown at."""
    return all(fault.kind != "unknown_fps" for fault in dataset.faults)


def require_trainable(dataset: Dataset) -> None:
    """Raise InputError, in one line, when a dataset can be looked at but not trained on."""
    if not dataset.num_frames:
        why = f"; the first of {len(dataset.faults)} faults: {dataset.faults[0]}" if dataset.faults else ""
        raise InputError(f"{dataset.root}: no episode to train on{why}")


def describe_left_out(faults: Iterable[Fault]) -> list[str]:
    """One line per kind of quarantine: "97 episodes left out (partial_download): 0-9, 11-28, 30-81, 83-99".

    And one for each file whose episodes are not even known.
    """
    by_kind: dict[tuple[str, bool], list[int]] = {}
    left_out = [fault for fault in faults if fault.action == "quarantine"]
    for fault in left_out:
        if fault.episode is not None:
            by_kind.setdefault((fault.kind, fault.frames is not None), []).append(fault.episode)
    whole_files = [
        f"{fault.file} left out ({fault.kind}): {fault.detail}" for fault in left_out if fault.episode is None
    ]
    return whole_files + [
        f"{'samples of ' if in_part else ''}{len(episodes)} {'episode' if len(episodes) == 1 else 'episodes'} left out"
        f" ({kind}): {as_ranges(episodes)}"
        for (kind, in_part), episodes in by_kind.items()
    ]


def as_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as "0-9, 11, 13-14"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
