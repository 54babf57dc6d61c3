"""Do the rows of the data files hold what metadata promises? Every episode's rows are found and looked at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vlarge.data.check import BrokenFile, FaultLog
from vlarge.data.fetch import Store, read_ahead
from vlarge.data.formats.lerobot_tables import TableFile, read_table_file
from vlarge.data.manifest import Listed

MAX_JITTER = 0.1  # of a frame; beyond it time stamps are called odd (they are never used to find a frame)
NOT_FINITE = ("nan_states", "nan_actions")


@dataclass(frozen=True)
class Rows:
    """Where an episode's rows begin in its file, the tasks its frames have, and the rows that are not finite."""

    first_row: int
    tasks: tuple[str, ...]
    bad_rows: tuple[int, ...]


class RowCheck:
    """Finds the rows of each episode. After `run`: `found` by episode number, `columns` of all files, dimensions.

    num_rows: rows of every episode number that was seen in a file, listed or not.
    """

    def __init__(
        self,
        store: Store,
        fps: float,
        keys: tuple[str, str],
        tasks: Mapping[int, str],
        log: FaultLog,
        on_file: Callable[[], None],
    ) -> None:
        self._store = store
        self._fps = fps
        self._keys = keys  # of state and action
        self.tasks = tasks
        self._log = log
        self._on_file = on_file
        self._odd: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._dims: dict[str, tuple[int, int]] = {}
        self.num_rows: Counter[int] = Counter()
        self.found: dict[int, Rows] = {}
        self.columns: dict[str, frozenset[str]] = {}
        self.state_dim = self.action_dim = 0

    def run(self, episodes: Iterable[Listed]) -> None:
        by_file: dict[str, list[Listed]] = defaultdict(list)
        for episode in episodes:
            by_file[episode.table_file].append(episode)
        for file, read in read_ahead(self._read, by_file, self._store.num_readers):
            self._check_file(file, read, by_file[file])
            self._on_file()
        self._settle_dims(by_file)
        for kind, odd in self._odd.items():
            where = f"{len(odd)} episodes (first: {odd[0][0]})" if len(odd) > 1 else f"episode {odd[0][0]}"
            self._log.report(kind, "data", f"{where}: {odd[0][1]}")

    def has_column(self, name: str) -> bool:
        """Whether any file that could be read has this column."""
        return any(name in columns for columns in self.columns.values())

    def require(self, names: Collection[str], episodes: Iterable[Listed]) -> None:
        """Leave out episodes whose file lacks one of these columns."""
        for episode in episodes:
            lacking = [name for name in names if name not in self.columns[episode.table_file]]
            if lacking:
                detail = f"it has no column {lacking[0]!r}"
                self._log.leave_out(episode.index, "missing_column", episode.table_file, detail)

    def _read(self, file: str) -> TableFile:
        return read_table_file(self._store, file, self._keys)

    def _check_file(self, file: str, read: Callable[[], TableFile], members: list[Listed]) -> None:
        try:
            table = read()
            if len(members) > 1 and "episode_index" not in table.scalars:
                raise BrokenFile("missing_column", f"it has no column 'episode_index', but {len(members)} episodes")
        except BrokenFile as error:
            for episode in members:
                self._log.leave_out(episode.index, error.kind, file, error.detail)
            return
        self.columns[file] = table.column_names
        self._dims[file] = table.state_RA.shape[1], table.action_RA.shape[1]
        self.num_rows.update(table.num_rows_by_episode)
        for episode in members:
            self._check_episode(file, table, episode)

    def _settle_dims(self, by_file: Mapping[str, list[Listed]]) -> None:
        # Most episodes decide; files of other sizes are left out.
        votes: Counter[tuple[int, int]] = Counter()
        for file, dims in self._dims.items():
            votes[dims] += len(by_file[file])
        if not votes:
            return
        self.state_dim, self.action_dim = votes.most_common(1)[0][0]
        for file, dims in self._dims.items():
            if dims != (self.state_dim, self.action_dim):
                detail = f"state and action have {dims} values, most others {self.state_dim, self.action_dim}"
                for episode in by_file[file]:
                    self._log.leave_out(episode.index, "shape_mismatch", file, detail)

    def _check_episode(self, file: str, table: TableFile, episode: Listed) -> None:
        try:
            rows = self._rows_in_place(table, episode)
            texts = row_tasks(table, rows, self.tasks, episode.tasks)
            bad_rows = self._bad_rows(file, table, rows, episode.index)
        except BrokenFile as error:
            self._log.leave_out(episode.index, error.kind, file, error.detail)
            return
        self._note_time(table, rows, episode)
        self._note_tasks(table, rows, episode, texts)
        self.found[episode.index] = Rows(rows.start, tuple(dict.fromkeys(texts)), bad_rows)

    def _rows_in_place(self, table: TableFile, episode: Listed) -> slice:
        rows = slice(*table.rows_of(episode.index))
        num_rows = rows.stop - rows.start
        frames = table.scalars["frame_index"][rows] if "frame_index" in table.scalars else np.arange(num_rows)
        if num_rows != episode.length or not np.array_equal(frames, np.arange(num_rows)):
            gap = int(np.argmin(np.append(frames, -1) == np.arange(num_rows + 1)))
            detail = (
                f"{num_rows} rows where metadata promises {episode.length}; frame {gap} is the first not in its place"
            )
            raise BrokenFile("missing_frame", detail)
        return rows

    def _bad_rows(self, file: str, table: TableFile, rows: slice, episode: int) -> tuple[int, ...]:
        # Rows with NaN or infinity: named, and never used.
        bad: set[int] = set()
        for kind, key, values in zip(NOT_FINITE, self._keys, (table.state_RA, table.action_RA), strict=True):
            found = np.flatnonzero(~np.isfinite(values[rows]).all(1)).tolist()
            bad |= set(found)
            if len(bad) == rows.stop - rows.start:
                raise BrokenFile(kind, f"{key} is NaN or infinite in {len(found)} frames; no frame is left to use")
            if found:
                detail = f"{key} is NaN or infinite in {len(found)} frames, first frame {found[0]}; they are not used"
                self._log.leave_out_frames(episode, (found[0], found[-1]), kind, file, detail)
        return tuple(sorted(bad))

    def _note_time(self, table: TableFile, rows: slice, episode: Listed) -> None:
        if "timestamp" not in table.scalars:
            return
        off_s = table.scalars["timestamp"][rows] - np.arange(rows.stop - rows.start) / self._fps
        worst_s, jitter_s = float(np.abs(off_s).max()), float(np.ptp(off_s))
        if not worst_s <= MAX_JITTER / self._fps:
            kind = "shifted_timestamps" if jitter_s <= MAX_JITTER / self._fps else "jittered_timestamps"
            self._odd[kind].append((episode.index, f"time stamps are {worst_s:.3g} s off; frames go by their number"))

    def _note_tasks(self, table: TableFile, rows: slice, episode: Listed, texts: list[str]) -> None:
        numbers = table.scalars.get("task_index")
        if numbers is not None and any(int(n) not in self.tasks for n in np.unique(numbers[rows])):
            detail = f"a task_index of its rows has no text; the task that metadata lists is used: {texts[0]!r:.60}"
            self._odd["unknown_task"].append((episode.index, detail))
        elif episode.tasks and not set(texts) <= set(episode.tasks):
            other = next(text for text in texts if text not in episode.tasks)
            detail = f"its rows say {other!r:.60}, metadata lists {episode.tasks[0]!r:.60}; the rows decide"
            self._odd["task_mismatch"].append((episode.index, detail))


def row_tasks(table: TableFile, rows: slice, tasks: Mapping[int, str], listed: tuple[str, ...]) -> list[str]:
    """The task of each row: by the value of task_index; without that column the episode's only one.

    Raises BrokenFile when that leaves a row without a task, or with a choice.
    """
    numbers = table.scalars.get("task_index")
    if numbers is not None and all(int(n) in tasks for n in np.unique(numbers[rows])):
        return [tasks[int(n)] for n in numbers[rows]]
    if len(listed) == 1:
        return [listed[0]] * (rows.stop - rows.start)
    raise BrokenFile("unknown_task", f"its rows name no known task, and metadata lists {len(listed)} for the episode")
