"""Arrow arrays as numpy arrays. pyarrow's own `to_numpy` imports pandas first, which costs a process seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def as_numpy(array: pa.Array) -> np.ndarray:
    """The numbers of an array, not copied where Arrow holds them as numpy does; nulls become NaN."""
    import pyarrow as pa

    kind = array.type
    if array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    dtype = np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind)))
    data = array.buffers()[1]
    if not len(array) or data is None:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
