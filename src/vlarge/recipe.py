"""The whole configuration of a run: one frozen dataclass per table, read from TOML, strict about every name and type.

A recipe is the defaults of each room's `config.py`, changed by a recipe file, then by overlays, then by `--a.b value`
options; the last one wins. Nothing is guessed: an unknown name is an error that suggests the nearest one.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from dataclasses import replace as replace_fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vlarge.contracts import InputError, check_range
from vlarge.data.config import DataConfig
from vlarge.evaluate.config import EvaluateConfig
from vlarge.loop.config import LoopConfig, RecordConfig
from vlarge.models.config import ModelConfig
from vlarge.sim.config import SimConfig
from vlarge.train.config import HealthConfig, ParallelConfig, RunConfig, TrackConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every setting of a run. `recipe.toml` in a run directory is `dump(recipe)` and reproduces the run."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    sim: SimConfig = field(default_factory=SimConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)


def load(paths: Sequence[str | Path] = (), overrides: Mapping[str, object] | None = None) -> Recipe:
    """The defaults, changed by each TOML file in turn, then by `overrides` ("train.steps" -> 40, or its text "40").

    Raises InputError naming the file or option and the key: a file that is not there or not TOML, an unknown table or
    key (with the nearest name), a value of another type.
    """
    recipe = Recipe()
    for path in paths:
        for key, value in _read(Path(path)).items():
            recipe = _set(recipe, key, value, f"{path}: ", _convert)
    for key, value in (overrides or {}).items():
        recipe = _set(recipe, key, value, "", _parse if isinstance(value, str) else _convert)
    return recipe


def replace(recipe: Recipe, key: str, value: object) -> Recipe:
    """The same recipe with one setting changed, as strict as a recipe file: `replace(recipe, "train.steps", 40)`."""
    return _set(recipe, key, value, "", _convert)


def dump(recipe: Recipe) -> str:
    """Complete TOML text, every key with its value: `load` of it gives the same recipe."""
    lines: list[str] = []
    for table in fields(recipe):
        lines += ["", f"[{table.name}]"]
        settings = getattr(recipe, table.name)
        nested = [f.name for f in fields(settings) if _holds_tables(keys()[f"{table.name}.{f.name}"])]
        nested = [name for name in nested if getattr(settings, name)]
        lines += _settings(settings, without=nested)
        for name in nested:
            for part in getattr(settings, name):
                lines += ["", f"[[{table.name}.{name}]]", *_settings(part)]
    return "\n".join(lines[1:]) + "\n"


def _settings(config: Any, without: Sequence[str] = ()) -> list[str]:
    return [f"{f.name} = {_toml(getattr(config, f.name))}" for f in fields(config) if f.name not in without]


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The hint of an error about an unknown name: "; did you mean …?", or nothing where no name is near."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


def nearest_key(key: str, aliases: Iterable[str] = (), prefix: str = "") -> str:
    """The same for a setting: the same name in another table comes before a similar name."""
    name = key.rpartition(".")[2]
    twins = [full for full in keys() if full.endswith(f".{name}")]
    return f"; did you mean {prefix}{twins[0]}?" if twins else nearest(key, [*keys(), *aliases], prefix)


@cache
def keys() -> dict[str, Any]:
    """Every setting by its dotted name, with its type."""
    tables = get_type_hints(Recipe)
    return {f"{table}.{key}": kind for table, config in tables.items() for key, kind in get_type_hints(config).items()}


def _read(path: Path) -> dict[str, object]:
    """The settings of one TOML file by dotted name."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no recipe at {path}: give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML: {error}") from None
    settings: dict[str, object] = {}
    for name, table in document.items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: key {name} stands outside every table{nearest_key(name)}")
        _check_table(name, f"{path}: ")
        settings |= {f"{name}.{key}": value for key, value in table.items()}
    return settings


def _set(recipe: Recipe, key: str, value: object, where: str, convert: Callable[[Any, Any], object]) -> Recipe:
    table, _, name = key.partition(".")
    if key not in keys():
        if name:
            _check_table(table, where)
        raise InputError(f"{where}unknown key {key}{nearest_key(key)}")
    config = getattr(recipe, table)
    checked = _checked(type(config), name, value, f"{where}{key}", convert)
    return replace_fields(recipe, **{table: replace_fields(config, **{name: checked})})


def _checked(config: type[Any], name: str, value: object, label: str, convert: Callable[[Any, Any], object]) -> object:
    """`value` as the setting `name` of a configuration: of its type and in its range, or InputError."""
    kind = get_type_hints(config)[name]
    if _holds_tables(kind):
        return _tables(get_args(kind)[0], value, label)
    try:
        checked = convert(kind, value)
    except ValueError:
        raise InputError(f"{label} must be {_describe(kind)}, got {_toml(value)}") from None
    check_range(label, checked, next(item.metadata for item in fields(config) if item.name == name))
    return checked


def _tables(config: type[Any], value: object, name: str) -> tuple[object, ...]:
    """A list of tables, or its TOML text, each as its dataclass."""
    given = value
    if isinstance(given, str):
        with suppress(ValueError):
            given = _toml_value(given)
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping | config) for each in given):
        raise InputError(f'{name} must be a list of tables, as [{{path = "a"}}, {{path = "b"}}]; got {_toml(value)}')
    return tuple(each if isinstance(each, config) else _table(config, each, name) for each in given)


def _table(config: type[Any], table: Mapping[str, object], name: str) -> object:
    names = [item.name for item in fields(config)]
    for key in table:
        if key not in names:
            raise InputError(f"{name}: unknown key {key}{nearest(key, names)}")
    return config(**{key: _checked(config, key, value, f"{name}.{key}", _convert) for key, value in table.items()})


def _holds_tables(kind: Any) -> bool:
    """Whether a setting is a list of tables of their own."""
    return get_origin(kind) is tuple and is_dataclass(get_args(kind)[0])


def _check_table(name: str, where: str) -> None:
    tables = [item.name for item in fields(Recipe)]
    if name not in tables:
        raise InputError(f"{where}unknown table [{name}]{nearest(name, tables) or '; tables: ' + ', '.join(tables)}")


def _convert(kind: Any, value: object) -> object:
    """A TOML value as `kind`; ValueError when it is of another type."""
    words, kind = _apart(kind)
    if value in words:
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError
        return tuple(_convert(item, each) for item, each in zip(_items(kind, len(value)), value, strict=True))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError
    return value


def _parse(kind: Any, text: str) -> object:
    """A command line's text as `kind`: lists are comma separated or TOML; ValueError when it does not read as one."""
    words, kind = _apart(kind)
    if text in words:
        return text
    if get_origin(kind) is tuple:
        if text.lstrip().startswith("["):
            return _convert(kind, _toml_value(text))
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_parse(item, part) for item, part in zip(_items(kind, len(parts)), parts, strict=True))
    if kind is bool:
        return ("false", "true").index(text.lower()) == 1
    return kind(text)


def _apart(kind: Any) -> tuple[tuple[str, ...], Any]:
    """Of `int | Literal["auto"]` the words and the type beside them; of any other kind no words, and itself."""
    for each in get_args(kind):
        if get_origin(each) is Literal:
            return get_args(each), next(other for other in get_args(kind) if other is not each)
    return (), kind


def _items(kind: Any, length: int) -> tuple[type, ...]:
    """Types of a tuple's items: `tuple[int, ...]` takes any number, `tuple[float, float]` exactly two."""
    arguments = get_args(kind)
    return arguments[:1] * length if arguments[-1] is Ellipsis else arguments


def _toml_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise ValueError from None


def _describe(kind: Any) -> str:
    words, kind = _apart(kind)
    if words:
        return " or ".join([_describe(kind), *map(repr, words)])
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if get_origin(kind) is not tuple:
        return names[kind]
    arguments = get_args(kind)
    many = "" if arguments[-1] is Ellipsis else f"{len(arguments)} values, each "
    return f"a list of {many}{names[arguments[0]]}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return str(value)
