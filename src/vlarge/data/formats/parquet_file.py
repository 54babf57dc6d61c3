"""Parquet files of a store: opened, what is wrong with them told, their footers parsed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.check import BrokenFile
from vlarge.data.fetch import Store

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PARSED_BYTES = 10  # of memory for each byte of a footer; 6 to 10 were measured


@dataclass(frozen=True, eq=False)
class Footer:
    """What a file says about itself. Of thousands of row groups it takes tens of milliseconds to parse.

    group_stops: int64 [groups], the row where each row group ends.
    """

    metadata: pq.FileMetaData
    group_stops: np.ndarray

    @property
    def num_bytes(self) -> int:
        return PARSED_BYTES * int(self.metadata.serialized_size) + self.group_stops.nbytes

    def first_row(self, group: int) -> int:
        """The row where a row group begins."""
        return int(self.group_stops[group - 1]) if group else 0

    def groups_of(self, start: int, stop: int) -> range:
        """The row groups that hold the rows [start, stop): where the file ends before them, its last one."""
        first, last = np.searchsorted(self.group_stops, [start, stop - 1], side="right").tolist()
        num_groups = len(self.group_stops)
        return range(max(0, min(first, num_groups - 1)), min(last + 1, num_groups))


def read_footer(store: Store, file: str) -> Footer:
    """Raises as `read_parquet` does."""

    def read(parquet: pq.ParquetFile) -> Footer:
        metadata = parquet.metadata
        lengths = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        return Footer(metadata, np.cumsum(lengths, dtype=np.int64))

    return read_parquet(store, file, read)


def column_names(parquet: pq.ParquetFile) -> list[str]:
    """The names of its columns. Raises BrokenFile for one that two columns have: no reader could tell them apart."""
    names = parquet.schema_arrow.names
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BrokenFile("bad_column", f"it has several columns called {twice[0]!r}")
    return list(names)


def read_parquet[T](store: Store, file: str, read: Callable[[pq.ParquetFile], T], footer: Footer | None = None) -> T:
    """What `read` makes of a parquet file, whose footer may be known.

    Raises BrokenFile for a file that is not what it should be. One that cannot be had is tried again for a while, and
    is then Unreachable.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def once() -> T:
        try:
            with pq.ParquetFile(store.open(file), metadata=footer and footer.metadata) as parquet:
                return read(parquet)
        except MemoryError:
            raise  # of this machine, though Arrow counts it among its own
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, InputError) or getattr(error, "errno", None) is not None:
                raise  # of the file system, not of the file
            raise BrokenFile("truncated_parquet", f"not a readable parquet file ({error}); fetch it again") from error

    return store.patience.try_again(store.path(file), once)
