"""What a dataset's metadata says about the numbers of a feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dimension_names(feature: Mapping[str, Any], num_dims: int, prefix: str = "") -> list[str]:
    """Names of a feature's dimensions where its metadata has one for each; else their numbers.

    They may stand in groups of which there is one: `{"motors": [...]}`, `[[...]]`.

    prefix: what stands before a number.
    """
    names = feature.get("names")
    while isinstance(names, Mapping | list) and len(names) == 1:
        (inner,) = names.values() if isinstance(names, Mapping) else names
        if isinstance(inner, str):
            break
        names = inner
    if isinstance(names, list) and len(names) == num_dims and all(isinstance(n, str) for n in names):
        return names
    return [f"{prefix}{number}" for number in range(num_dims)]
