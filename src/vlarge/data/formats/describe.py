"""What a LeRobot v3.0 dataset says about itself: features, statistics, tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import ACTION, STATE
from vlarge.data.stats import Accumulator, PixelHistogram

QUANTILE_LEVELS = (0.01, 0.10, 0.50, 0.90, 0.99)
INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def features(
    cameras: Mapping[str, tuple[int, int]], state_names: Sequence[str], action_names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The `features` of info.json. cameras: key -> (height, width); see `camera_info` for what is added at the end."""
    names = ["height", "width", "channels"]
    described: dict[str, dict[str, Any]] = {
        key: {"dtype": "video", "shape": [height, width, 3], "names": names} for key, (height, width) in cameras.items()
    }
    described[STATE] = {"dtype": "float32", "shape": [len(state_names)], "names": list(state_names)}
    described[ACTION] = {"dtype": "float32", "shape": [len(action_names)], "names": list(action_names)}
    for name in INDEX_FEATURES:
        described[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return described


def camera_info(fps: float, size: tuple[int, int], stream_info: Mapping[str, Any]) -> dict[str, Any]:
    """The `info` of a camera. size: (height, width); stream_info: how its video is encoded."""
    return {
        "video.height": size[0],
        "video.width": size[1],
        **stream_info,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
        "is_depth_map": False,
    }


def numeric_feature(values: np.ndarray) -> dict[str, Any]:
    """The feature of a further column, [n] or [n, dim]."""
    return {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}


def hugging_face_schema(described: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The metadata by which Hugging Face `datasets` types the parquet columns."""
    columns: dict[str, Any] = {}
    for name, feature in described.items():
        value = {"dtype": feature["dtype"], "_type": "Value"}
        if feature["dtype"] != "video":
            length = feature["shape"][0]
            columns[name] = value if length == 1 else {"feature": value, "length": length, "_type": "Sequence"}
    return {"info": {"features": columns}}


def stats_of(rows: Accumulator) -> dict[str, list[Any]]:
    """Statistics of a numeric feature as lists."""
    summary = rows.summary(QUANTILE_LEVELS)
    return {**{name: values.tolist() for name, values in summary.items()}, "count": [rows.count]}


def pixel_stats_of(pixels: PixelHistogram, num_images: int) -> dict[str, list[Any]]:
    """Statistics of a camera as lists of shape (3, 1, 1), in [0, 1]; their count is the number of images."""
    summary = pixels.summary(QUANTILE_LEVELS)
    return {**{name: values[:, None, None].tolist() for name, values in summary.items()}, "count": [num_images]}


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """tasks.parquet as pandas writes it, for pandas to read: the sentences are the index of the data frame."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text_type = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [{"name": None, "field_name": None, **text_type, "metadata": {"encoding": "UTF-8"}}],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": "task", "field_name": "task", **text_type},
        ],
        "pandas_version": "2.0.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)
