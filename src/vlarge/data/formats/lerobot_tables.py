"""The numbers of a LeRobot data file (parquet), whatever writer and dtype they come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vlarge.data.arrow_numbers import as_numpy
from vlarge.data.check import BrokenFile
from vlarge.data.fetch import Store
from vlarge.data.formats.parquet_file import Footer, column_names, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SCALARS = ("episode_index", "frame_index", "task_index", "timestamp")
OBJECT_BYTES = 2 << 10  # of a TableFile beside its numbers: what few rows take


@dataclass(frozen=True, eq=False)
class TableFile:
    """Rows of one file (suffix R), all or those of some row groups: float32 state [R, S] and action [R, A].

    scalars: the columns of SCALARS that exist.
    """

    state_RA: np.ndarray
    action_RA: np.ndarray
    scalars: dict[str, np.ndarray]
    column_names: frozenset[str]

    @property
    def num_bytes(self) -> int:
        return OBJECT_BYTES + sum(a.nbytes for a in (self.state_RA, self.action_RA, *self.scalars.values()))

    def rows_of(self, episode: int) -> tuple[int, int]:
        """Rows [start, stop) of an episode, found by its number. Raises BrokenFile when they are none or scattered."""
        if "episode_index" not in self.scalars:
            return 0, len(self.state_RA)
        runs = self._runs.get(episode, [])
        if not runs:
            held = ", ".join(map(str, self._runs)) or "none"
            raise BrokenFile("wrong_data_file_index", f"it has no rows of episode {episode}, but of {held:.60}")
        if len(runs) > 1:
            raise BrokenFile("scattered_rows", f"rows of other episodes lie between those of episode {episode}")
        return runs[0]

    @cached_property
    def _runs(self) -> dict[int, list[tuple[int, int]]]:
        # Rows [start, stop) of each run of one episode number.
        numbers = self.scalars.get("episode_index", np.zeros(0, np.int64))
        starts = np.append(True, np.diff(numbers) != 0)[: len(numbers)].nonzero()[0]
        stops = np.append(starts[1:], len(numbers))
        found: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in zip(numbers[starts].tolist(), starts.tolist(), stops.tolist(), strict=False):
            found.setdefault(number, []).append((start, stop))
        return found

    @property
    def num_rows_by_episode(self) -> dict[int, int]:
        """How many rows each episode number has in this file."""
        return {number: sum(stop - start for start, stop in runs) for number, runs in self._runs.items()}


def read_table_file(
    store: Store, file: str, keys: tuple[str, str], groups: range | None = None, footer: Footer | None = None
) -> TableFile:
    """The columns that training needs, and no image; of all row groups, or of some. keys: of state and action.

    Raises BrokenFile naming the column or what is wrong, and as `read_parquet` does.
    """
    names, table = read_parquet(store, file, partial(_read_columns, keys, groups), footer)
    if not len(table):
        raise BrokenFile("empty_parquet", "it has no rows")
    scalars = {name: _scalars(table, name) for name in SCALARS if name in names}
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is found as such
        state_RA, action_RA = (_numbers(table, key).astype(np.float32) for key in keys)
    return TableFile(state_RA, action_RA, scalars, names)


def _read_columns(
    keys: tuple[str, str], groups: range | None, parquet: pq.ParquetFile
) -> tuple[frozenset[str], pa.Table]:
    names = frozenset(column_names(parquet))
    for key in keys:
        if key not in names:
            raise BrokenFile("missing_column", f"it has no column {key!r}")
    columns = [*keys, *(s for s in SCALARS if s in names)]
    return names, parquet.read(columns) if groups is None else parquet.read_row_groups(groups, columns)


def _scalars(table: pa.Table, name: str) -> np.ndarray:
    # Time stamps are only looked at, never used: whatever is none becomes NaN. All else must be whole numbers.
    try:
        values = _numbers(table, name)
    except BrokenFile as error:
        if name == "timestamp":
            return np.full(len(table), np.nan)
        raise BrokenFile("bad_column", error.detail) from error
    if values.shape[1] != 1:
        raise BrokenFile("bad_column", f"column {name!r} has {values.shape[1]} values in a row, it should have one")
    if name == "timestamp":
        return np.where(np.isfinite(values[:, 0]), values[:, 0], np.nan)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        if not np.isfinite(values).all() or (np.abs(values) >= 2**53).any() or (values % 1).any():
            raise BrokenFile("bad_column", f"column {name!r} does not hold whole numbers")
    return values[:, 0].astype(np.int64)


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    # [R, dim] from scalars, fixed or variable lists, and lists of lists. Nulls become NaN, and null rows rows of it.
    import pyarrow as pa

    column = table[name].combine_chunks()
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if column.null_count and pa.types.is_nested(column.type):
        return _with_null_rows(column, name)
    num_rows, flat = len(column), column
    lists = pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray
    while isinstance(flat, lists) and not isinstance(flat, pa.MapArray):
        if not _is_even(flat):
            raise BrokenFile("shape_mismatch", f"column {name!r} has rows of different lengths")
        flat = flat.flatten()
    kind = flat.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise BrokenFile("shape_mismatch", f"column {name!r} does not hold numbers ({kind})")
    if not len(flat) or len(flat) % num_rows:
        raise BrokenFile("shape_mismatch", f"column {name!r} has no values")
    return np.asarray(as_numpy(flat), np.float64 if flat.null_count else None).reshape(num_rows, -1)


def _with_null_rows(column: Any, name: str) -> np.ndarray:
    import pyarrow as pa

    is_there = ~as_numpy(column.is_null())
    if not is_there.any():
        raise BrokenFile("shape_mismatch", f"column {name!r} has no values")
    present = _numbers(pa.table({name: column.drop_null()}), name)
    rows = np.full((len(column), present.shape[1]), np.nan)
    rows[is_there] = present
    return rows


def _is_even(column: Any) -> bool:
    import pyarrow as pa

    if isinstance(column, pa.FixedSizeListArray):
        return bool(column.null_count == 0)
    lengths = np.diff(as_numpy(column.offsets))
    return column.null_count == 0 and (len(lengths) == 0 or bool((lengths == lengths[0]).all()))


@dataclass(frozen=True)
class Cells:
    """Pictures of one row group of an image column, as they are stored; the first is of row `first_row`."""

    first_row: int
    data: tuple[bytes, ...]

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.data))


def read_cells(store: Store, file: str, key: str, group: int, footer: Footer) -> Cells:
    """Raises as `read_parquet` does."""

    def read(parquet: pq.ParquetFile) -> Cells:
        cells = parquet.read_row_group(group, columns=[key])[key].to_pylist()
        data = tuple((c.get("bytes") if isinstance(c, dict) else c) or b"" for c in cells)
        return Cells(footer.first_row(group), data)

    return read_parquet(store, file, read, footer)
