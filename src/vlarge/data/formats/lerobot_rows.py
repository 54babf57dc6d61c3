"""Do the rows of the data files hold what metadata promises? Every episode's rows are found and looked at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vlarge.data.check import Action, BrokenFile, FaultLog
from vlarge.data.fetch import Store, read_ahead
from vlarge.data.formats.lerobot_tables import TableFile, read_table_file
from vlarge.data.manifest import Listed

MAX_JITTER = 0.1  # of a frame; beyond it time stamps are called odd (they are never used to find a frame)
NOT_FINITE = ("nan_states", "nan_actions")  # training refuses these: nothing says which values were meant


@dataclass(frozen=True)
class Rows:
    """Where an episode's rows begin in its file, and the tasks its frames have."""

    first_row: int
    tasks: tuple[str, ...]


class RowCheck:
    """Finds the rows of each episode. After `run`: `found` by episode number, `columns` of all files, dimensions."""

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
        self._odd_times: dict[str, list[tuple[int, float]]] = defaultdict(list)
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
        for kind, odd in self._odd_times.items():
            worst = max(seconds for _, seconds in odd)
            where = f"{len(odd)} episodes (first: {odd[0][0]})"
            detail = f"time stamps of {where} are up to {worst:.3g} s off; frames go by their number"
            self._log.report(kind, "data", detail)

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
        return read_table_file(self._store, file, *self._keys)

    def _check_file(self, file: str, read: Callable[[], TableFile], members: list[Listed]) -> None:
        try:
            table = read()
            self._check_dims(table)
        except BrokenFile as error:
            for episode in members:
                self._log.leave_out(episode.index, error.kind, file, error.detail)
            return
        self.columns[file] = table.column_names
        for episode in members:
            self._check_episode(file, table, episode)

    def _check_dims(self, table: TableFile) -> None:
        dims = table.state_RA.shape[1], table.action_RA.shape[1]
        if not self.state_dim:
            self.state_dim, self.action_dim = dims
        if dims != (self.state_dim, self.action_dim):
            detail = f"state and action have {dims} values, those of the files before {self.state_dim, self.action_dim}"
            raise BrokenFile("shape_mismatch", detail)

    def _check_episode(self, file: str, table: TableFile, episode: Listed) -> None:
        try:
            rows = self._rows_in_place(table, episode)
            self._check_finite(table, rows)
            texts = row_tasks(table, rows, self.tasks, episode.tasks)
        except BrokenFile as error:
            action: Action = "refuse" if error.kind in NOT_FINITE else "quarantine"
            self._log.leave_out(episode.index, error.kind, file, error.detail, action)
            return
        self._note_time(table, rows, episode)
        self.found[episode.index] = Rows(rows.start, tuple(dict.fromkeys(texts)))

    def _rows_in_place(self, table: TableFile, episode: Listed) -> slice:
        rows = slice(*table.rows_of(episode.index))
        num_rows = rows.stop - rows.start
        if not num_rows:
            raise BrokenFile("wrong_data_file_index", f"the file has no rows of episode {episode.index}")
        frames = table.scalars["frame_index"][rows] if "frame_index" in table.scalars else np.arange(num_rows)
        if num_rows != episode.length or not np.array_equal(frames, np.arange(num_rows)):
            gap = int(np.argmin(np.append(frames, -1) == np.arange(num_rows + 1)))
            detail = (
                f"{num_rows} rows where metadata promises {episode.length}; frame {gap} is the first not in its place"
            )
            raise BrokenFile("missing_frame", detail)
        return rows

    def _check_finite(self, table: TableFile, rows: slice) -> None:
        for kind, key, values in zip(NOT_FINITE, self._keys, (table.state_RA, table.action_RA), strict=True):
            bad = np.flatnonzero(~np.isfinite(values[rows]).all(1))
            if len(bad):
                raise BrokenFile(kind, f"{key} is NaN or infinite in {len(bad)} frames, first frame {bad[0]}")

    def _note_time(self, table: TableFile, rows: slice, episode: Listed) -> None:
        if "timestamp" not in table.scalars:
            return
        off_s = table.scalars["timestamp"][rows] - np.arange(rows.stop - rows.start) / self._fps
        worst_s, jitter_s = float(np.abs(off_s).max()), float(np.ptp(off_s))
        if not worst_s <= MAX_JITTER / self._fps:
            kind = "shifted_timestamps" if jitter_s <= MAX_JITTER / self._fps else "jittered_timestamps"
            self._odd_times[kind].append((episode.index, worst_s))


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
