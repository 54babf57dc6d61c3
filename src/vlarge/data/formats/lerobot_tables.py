"""The numbers of a LeRobot data file (parquet), whatever writer and dtype they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vlarge.data.arrow_numbers import as_numpy
from vlarge.data.check import BrokenFile
from vlarge.data.fetch import Store
from vlarge.data.video import decode_image

if TYPE_CHECKING:
    import pyarrow as pa

SCALARS = ("episode_index", "frame_index", "task_index", "timestamp")


@dataclass(frozen=True, eq=False)
class TableFile:
    """All rows of one file (suffix R): float32 state [R, S] and action [R, A]; scalar columns where they exist."""

    state_RA: np.ndarray
    action_RA: np.ndarray
    scalars: dict[str, np.ndarray]
    column_names: frozenset[str]

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes for a in (self.state_RA, self.action_RA, *self.scalars.values()))

    def rows_of(self, episode: int) -> tuple[int, int]:
        """Rows [start, stop) of an episode, found by its number; (0, 0) when there are none or they are scattered."""
        if "episode_index" not in self.scalars:
            return 0, len(self.state_RA)
        return self._rows.get(episode, (0, 0))

    @cached_property
    def _rows(self) -> dict[int, tuple[int, int]]:
        numbers = self.scalars["episode_index"]
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        stops = np.append(starts[1:], len(numbers))
        found: dict[int, tuple[int, int]] = {}
        for number, start, stop in zip(numbers[starts].tolist(), starts.tolist(), stops.tolist(), strict=True):
            found[number] = (0, 0) if number in found else (start, stop)
        return found


def read_table_file(store: Store, file: str, state_key: str, action_key: str) -> TableFile:
    """The columns that training needs, and no image. Raises BrokenFile naming the column or what is wrong."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not store.exists(file):
        raise BrokenFile("missing_parquet", "the file does not exist")
    try:
        with pq.ParquetFile(store.open(file)) as parquet:
            names = frozenset(parquet.schema_arrow.names)
            for key in (state_key, action_key):
                if key not in names:
                    raise BrokenFile("missing_column", f"it has no column {key!r}")
            table = parquet.read(columns=[state_key, action_key, *(s for s in SCALARS if s in names)])
    except (pa.ArrowException, OSError) as error:
        raise BrokenFile("truncated_parquet", f"not a readable parquet file ({error})") from error
    scalars = {s: _numbers(table, s)[:, 0] for s in SCALARS if s in names}
    return TableFile(
        state_RA=_numbers(table, state_key).astype(np.float32),
        action_RA=_numbers(table, action_key).astype(np.float32),
        scalars={s: v if s == "timestamp" else v.astype(np.int64) for s, v in scalars.items()},
        column_names=names,
    )


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    # [R, dim] from scalars, fixed or variable lists, and lists of lists.
    import pyarrow as pa

    column = table[name].combine_chunks()
    num_rows, flat = len(column), column
    while isinstance(flat, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        flat = flat.flatten()
    if (num_rows and len(flat) % num_rows) or not _is_even(column):
        raise BrokenFile("shape_mismatch", f"column {name!r} has rows of different lengths")
    try:
        return np.asarray(as_numpy(flat), np.float64 if flat.null_count else None).reshape(num_rows, -1)
    except (ValueError, TypeError) as error:
        raise BrokenFile("shape_mismatch", f"column {name!r} does not hold numbers ({flat.type})") from error


def _is_even(column: Any) -> bool:
    import pyarrow as pa

    if not isinstance(column, pa.ListArray | pa.LargeListArray):
        return not isinstance(column, pa.FixedSizeListArray) or column.null_count == 0
    lengths = np.diff(as_numpy(column.offsets))
    return column.null_count == 0 and (len(lengths) == 0 or bool((lengths == lengths[0]).all()))


def read_images(store: Store, file: str, key: str, rows: Sequence[int]) -> Iterator[np.ndarray]:
    """uint8 [H, W, 3] of an image column at these rows (ascending). A row group is read once."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(store.open(file)) as parquet:
        stops = np.cumsum([parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)])
        groups = np.searchsorted(stops, np.asarray(rows), side="right")
        for group in np.unique(groups):
            cells = parquet.read_row_group(int(group), columns=[key])[key]
            start = stops[group] - len(cells)
            for row in np.asarray(rows)[groups == group]:
                cell = cells[int(row - start)].as_py()
                data = cell.get("bytes") if isinstance(cell, dict) else cell
                yield decode_image(data or b"", f"{store.path(file)}: column {key!r} row {row}")
