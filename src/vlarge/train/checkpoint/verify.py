"""Is a checkpoint whole? Every file there with its size, every name with its shape, every byte as it was saved."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from vlarge.contracts import InputError

METADATA, CHECKSUM = ".metadata", ".metadata.crc32"
Form = tuple[tuple[int, ...], str] | None  # shape and dtype; None for a number or a string


def read_metadata(folder: Path) -> Metadata:
    """What a checkpoint says of itself. It is unpickled: read only runs that you trust. Raises InputError."""
    path = folder / METADATA
    try:
        if checksum(path) != (folder / CHECKSUM).read_text():
            raise InputError(f"{path} is not what was saved")
        metadata = FileSystemReader(folder).read_metadata()
    except FileNotFoundError as error:
        raise InputError(f"{error.filename} is not there") from None
    except (OSError, AttributeError, ImportError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); was it saved with another version of torch?") from error
    return metadata


def require_files(folder: Path, metadata: Metadata) -> None:
    """Raise InputError for a file that is missing or has another size than was written."""
    ends: dict[str, int] = {}
    for part in metadata.storage_data.values():
        ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    for name, num_bytes in sorted(ends.items()):
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} is not there; all processes need one folder")
        if (found := path.stat().st_size) != num_bytes:
            raise InputError(f"{path} has {found} bytes of {num_bytes}")


def require_bytes(folder: Path, metadata: Metadata, indices: Iterable[MetadataIndex]) -> None:
    """Raise InputError for a part that is not what was written. Reads each part once, and holds one at a time.

    torch saves a part as a zip file, with the checksum of each record that it never looks at when it loads.
    """
    for index in indices:
        part = metadata.storage_data[index]
        path = folder / part.relative_path
        with path.open("rb") as file:
            file.seek(part.offset)
            saved = io.BytesIO(file.read(part.length))
        if not _is_as_saved(saved):
            raise InputError(f"{index.fqn} in {path} is not what was saved")


def _is_as_saved(saved: io.BytesIO) -> bool:
    try:
        with zipfile.ZipFile(saved) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile has no one error for a spoilt header
        return False


def checksum(path: Path) -> str:
    return f"{zlib.crc32(path.read_bytes()):08x}"


def require_names(metadata: Metadata, planned: Metadata, must_hold: Mapping[str, Sequence[int]]) -> None:
    """Raise InputError where the files hold other things than were planned, or not all that a checkpoint must."""
    found, wanted = forms(metadata), forms(planned)
    if found != wanted:
        raise InputError(f"{_first(found.items() ^ wanted.items())} was not written as planned")
    for name, shape in must_hold.items():
        if name not in found:
            raise InputError(f"{name} is not in the state")
        form = found[name]
        if form is None or form[0] != tuple(shape):
            raise InputError(f"{name} is {form and [*form[0]]} and must be {[*shape]}")


def require_fit(metadata: Metadata, asked: Sequence[Mapping[str, Form]]) -> None:
    """Raise InputError where what the processes ask for together is not exactly what the checkpoint holds."""
    found = forms(metadata)
    wanted = {name: form for each in asked for name, form in each.items()}
    if missing := wanted.keys() - found.keys():
        raise InputError(f"it lacks {_first(missing)}")
    if unknown := found.keys() - wanted.keys():
        raise InputError(f"it has {_first(unknown)}, which this run has not")
    for each in asked:
        for name, form in each.items():
            if form != found[name]:
                raise InputError(f"Size mismatch: {name} is {_said(found[name])} in it and {_said(form)} here")


def forms(metadata: Metadata) -> dict[str, Form]:
    """Shape and dtype of everything in a checkpoint."""
    return {
        name: (tuple(each.size), str(each.properties.dtype)) if isinstance(each, TensorStorageMetadata) else None
        for name, each in metadata.state_dict_metadata.items()
    }


def form_of(value: Any) -> Form:
    return (tuple(value.shape), str(value.dtype)) if isinstance(value, Tensor) else None


def _said(form: Form) -> str:
    return f"{[*form[0]]} {form[1].removeprefix('torch.')}" if form else "no tensor"


def _first(names: Any) -> str:
    return min(each if isinstance(each, str) else each[0] for each in names)
