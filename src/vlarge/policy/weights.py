"""The weights of a policy folder: one safetensors file, or several with an index. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vlarge.contracts import InputError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name; no weight is read. Raises InputError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _files(folder):
        try:
            with safe_open(path, "pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from error
    return shapes


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every weight by its name. Raises InputError."""
    return {name: value for path in _files(folder) for name, value in read_file(path).items()}


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file. Raises InputError."""
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """All weights as one file of `folder`."""
    from safetensors.torch import save_file

    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return [folder / WEIGHTS]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(index, error) from error
    return [beside(index, name) for name in names]


def beside(path: Path, name: object) -> Path:
    """The file in the folder of `path` that is named there. Raises InputError for a name that leads elsewhere."""
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise InputError(f"{path} names {name!r}, which is no file beside it")
    return path.with_name(name)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"cannot read {path}: {error}; use another checkpoint")
