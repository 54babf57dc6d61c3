"""Writes small RLDS datasets with any features, for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

KIND = "tensorflow_datasets.core.features."


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in shape]} if shape else {}
    name = "tensor_feature.Tensor" if shape else "scalar.Scalar"
    return {"pythonClassName": KIND + name, "tensor": {"shape": dims, "dtype": dtype, "encoding": encoding}}


def image(*shape: int, dtype: str = "uint8") -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in shape]}
    return {"pythonClassName": KIND + "image_feature.Image", "image": {"shape": dims, "dtype": dtype}}


def text() -> dict[str, Any]:
    return {"pythonClassName": KIND + "text_feature.Text", "text": {}}


def named(features: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": KIND + "features_dict.FeaturesDict", "featuresDict": {"features": features}}


def write(
    folder: Path,
    md: ModuleType,
    step: dict[str, Any],
    episodes: list[dict[str, Any]],
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A dataset of one shard; episodes as flat names -> values."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = {"pythonClassName": KIND + "dataset_feature.Dataset", "sequence": {"feature": named(step), "length": "-1"}}
    tree = named({"steps": steps} | ({"episode_metadata": named(metadata)} if metadata else {}))
    (folder / "features.json").write_text(json.dumps(tree))
    split = {"name": "train", "shardLengths": [str(len(episodes))]}
    (folder / "dataset_info.json").write_text(json.dumps({"name": "set", "splits": [split]}))
    records = b"".join(md.tf_record(md.tf_example(episode)) for episode in episodes)
    (folder / "set-train.tfrecord-00000-of-00001").write_bytes(records)
    return folder


STEP = {"action": tensor("float32", 2), "observation": named({"state": tensor("float32", 3)})}


def numbers(length: int) -> dict[str, Any]:
    actions = np.arange(1, 2 * length + 1, dtype="f4")
    return {"steps/observation/state": np.arange(3 * length, dtype="f4"), "steps/action": actions}
