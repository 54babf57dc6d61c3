"""Who keeps the others waiting: a judgement over the last beats of all processes, made once a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vlarge.train.health.pulse import WAITING, Beat

SILENT = "no sign of life"
NAMED_RANKS = 8  # in a text; the others are counted
SURE_BEATS = 2  # of a process whose collective does not end: others may have ended it and not have said so yet


@dataclass(frozen=True)
class Notice:
    """One line of the log: these ranks have been in a section for so long, or came back from it. Times in seconds."""

    ranks: tuple[int, ...]
    section: str
    seconds: float
    step: int
    detail: str = ""
    over: bool = False

    @property
    def text(self) -> str:
        who = _who(self.ranks)
        if self.over:
            what = "gives signs of life again" if self.section == SILENT else "came back from " + self.section
            return f"{who} {what} after {self.seconds:.0f} s"
        if self.section == SILENT:
            return f"{who}: no sign of life for {self.seconds:.0f} s, last seen in {self.detail}, step {self.step}"
        if len(self.ranks) > 1 and self.section in WAITING:
            return f"{who}: all wait for each other for {self.seconds:.0f} s, step {self.step}: look at the network"
        return f"{who}: in {self.section} for {self.seconds:.0f} s, step {self.step}" + f": {self.detail}" * bool(
            self.detail
        )


class _Named(NamedTuple):
    """A stall that was told: of which section, the how manieth one, and for how long it had lasted."""

    section: str
    entry: int
    seconds: float


@dataclass
class _Seen:
    """The last beat of a rank, and for how many looks it has been the last."""

    beat: Beat
    num_looks: int = 0


@dataclass
class Stalls:
    """Remembers who has been named. look_s: seconds from one look to the next; a process that has not spoken for
    `silent_s` is silent.

    Silence is counted in looks, not by a clock: a machine that slept has not missed anything.
    """

    look_s: float
    silent_s: float
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _named: dict[int, _Named] = field(default_factory=dict)
    _suspected: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> last beat, how many

    def hear(self, beats: Mapping[int, Beat]) -> list[Notice]:
        """Take the last beat of each rank that has spoken, once in a look. Says which stalls are over."""
        over = [notice for rank, beat in beats.items() for notice in self._note(rank, beat)]
        return list(_grouped(over))

    def judge(self) -> list[Notice]:
        """After all beats of a look: who has to be named now."""
        present = {rank: seen.beat for rank, seen in self._seen.items() if not seen.beat.left}
        silent = [rank for rank in present if self.is_silent(rank)]
        notices: list[Notice] = []
        for section, ranks in self._culprits(present, silent).items():
            new = [rank for rank in ranks if rank not in self._named]
            for rank in new:
                self._named[rank] = _Named(section, present[rank].entry, present[rank].section_s)
            notices += self._naming(section, new, present)
        return notices

    def is_silent(self, rank: int) -> bool:
        """Whether a rank that has spoken does not any more. One that has not spoken yet is not silent."""
        seen = self._seen.get(rank)
        return seen is not None and (seen.beat.left or seen.num_looks * self.look_s > self.silent_s)

    def _note(self, rank: int, beat: Beat) -> Iterable[Notice]:
        seen = self._seen.get(rank)
        if seen and seen.beat.number == beat.number:
            seen.num_looks += 1
            return
        silence_s = seen.num_looks * self.look_s if seen else 0.0
        self._seen[rank] = _Seen(beat)
        named = self._named.get(rank)
        if named and (named.section == SILENT or named.entry != beat.entry):
            del self._named[rank]
            ended_s = beat.ended_s if beat.ended_entry == named.entry else named.seconds
            seconds = silence_s if named.section == SILENT else ended_s
            yield Notice((rank,), named.section, seconds, beat.step, over=True)

    def _culprits(self, present: Mapping[int, Beat], silent: list[int]) -> dict[str, list[int]]:
        """Ranks to name, by section: silent ones, and late ones that wait for nobody else."""
        found: dict[str, list[int]] = {SILENT: silent} if silent else {}
        fewest = min((beat.rounds for beat in present.values()), default=0)
        most = max((beat.rounds for beat in present.values()), default=0)
        behind = [r for r, beat in present.items() if beat.late and beat.rounds == fewest and r not in silent]
        all_wait = len(behind) == len(present) and all(present[r].section in WAITING for r in behind)
        for rank in behind:
            section = present[rank].section
            if section not in WAITING or all_wait or (fewest < most and self._is_sure(rank, present[rank])):
                found.setdefault(section, []).append(rank)
        return found

    def _is_sure(self, rank: int, beat: Beat) -> bool:
        last, times = self._suspected.get(rank, (-1, 0))
        if last != beat.number:
            times = times + 1 if last == beat.number - 1 else 1
            self._suspected[rank] = beat.number, times
        return times >= SURE_BEATS

    def _naming(self, section: str, ranks: list[int], beats: Mapping[int, Beat]) -> Iterable[Notice]:
        if not ranks:
            return
        if section == SILENT:
            by_place: dict[str, list[int]] = {}
            for rank in ranks:
                by_place.setdefault(beats[rank].section, []).append(rank)
            for place, own in by_place.items():
                seconds = max(self._seen[rank].num_looks for rank in own) * self.look_s
                yield Notice(tuple(own), SILENT, seconds, beats[own[0]].step, place)
            return
        longest = max(ranks, key=lambda rank: beats[rank].section_s)
        beat = beats[longest]
        ordered = (longest, *(rank for rank in ranks if rank != longest))
        yield Notice(ordered, section, beat.section_s, beat.step, beat.detail)


def _grouped(notices: Iterable[Notice]) -> Iterable[Notice]:
    """Those of one section as one, with the longest of their times."""
    by_section: dict[str, list[Notice]] = {}
    for notice in notices:
        by_section.setdefault(notice.section, []).append(notice)
    for own in by_section.values():
        longest = max(own, key=lambda notice: notice.seconds)
        ranks = tuple(rank for notice in own for rank in notice.ranks)
        yield Notice(ranks, longest.section, longest.seconds, longest.step, over=True)


def _who(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = len(ranks) - NAMED_RANKS
    named = ", ".join(map(str, ranks[:NAMED_RANKS]))
    return f"ranks {named}" + (f" and {more} more" if more > 0 else "")
