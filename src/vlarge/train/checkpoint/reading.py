"""Reading a checkpoint: into a state of any layout, or whole tensors by name.

torch.distributed.checkpoint pickles what it writes, so reading unpickles: only runs that you trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, Metadata
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from vlarge.contracts import InputError
from vlarge.train.checkpoint.verify import read_metadata, require_bytes


def fill(folder: Path, metadata: Metadata, leaves: dict[str, Any]) -> None:
    """Read into a flat state: tensors and this process's shards of DTensors in place, numbers and strings replaced.

    No collective; only the parts that are asked for are read. Raises InputError for a damaged file.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(leaves, metadata)
    plan = planner.create_local_plan()
    reader = FileSystemReader(folder)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    try:
        require_bytes(folder, metadata, {item.storage_index for item in plan.items})
        with torch.no_grad():
            reader.read_data(plan, planner)
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error})") from error
    except RuntimeError as error:  # of a zip's own headers, which have no checksum
        raise InputError(f"{folder} is not what was saved ({str(error).split('. ')[0]})") from error


class Reader:
    """Whole values of one checkpoint by their flat names ("model.embed.weight"), however they were sharded.

    One process reads, alone, one value at a time: no collective, and no more memory than the value takes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata = read_metadata(folder)

    @property
    def names(self) -> list[str]:
        return sorted(self._metadata.state_dict_metadata)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None for a number or a string. Raises InputError where there is no such name."""
        form = self._form(name)
        return tuple(form.size) if isinstance(form, TensorStorageMetadata) else None

    def __call__(self, name: str) -> Any:
        """A new tensor on the CPU, or a number or a string. Raises InputError where there is no such name."""
        form = self._form(name)
        whole = torch.empty(form.size, dtype=form.properties.dtype) if isinstance(form, TensorStorageMetadata) else None
        leaves: dict[str, Any] = {name: whole}
        fill(self._folder, self._metadata, leaves)
        return leaves[name]

    def _form(self, name: str) -> TensorStorageMetadata | BytesStorageMetadata:
        if name not in self._metadata.state_dict_metadata:
            raise InputError(f"{self._folder} does not hold {name}")
        return self._metadata.state_dict_metadata[name]
