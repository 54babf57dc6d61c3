"""What a record of an RLDS dataset holds: features.json with LeRobot's names, and one record's steps as arrays."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlarge.contracts import IMAGE_PREFIX, InputError
from vlarge.data.check import BrokenFile, Refused, did_you_mean
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.formats.lerobot_metadata import read_json

FeaturePath = tuple[str, ...]  # below `steps`, or ("episode_metadata", name)

METADATA = "episode_metadata"
INSTRUCTIONS = (("language_instruction",), ("observation", "natural_language_instruction"))
FPS_NAMES = ("fps", "control_frequency", "control_hz")
# features.json names Python classes, which the library imports; only its own are let in.
TRUSTED_CLASSES = "tensorflow_datasets.core.features."
CLASS_KEYS = ("pythonClassName", "type")
TYPED = ("tensor", "image")  # contents with a dtype; a feature may be called so, too, and has a class


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of one record: float32 [T, S] and [T, A], the instruction of each, encoded pictures by camera.

    pictures has no entry for a camera that the record lacks. fps is 0 where the record does not say.
    """

    state_TA: np.ndarray
    action_TA: np.ndarray
    tasks: list[str]
    pictures: Mapping[str, Sequence[bytes]]
    fps: float

    @property
    def num_bytes(self) -> int:
        pictures = sum(len(data) for images in self.pictures.values() for data in images)
        return self.state_TA.nbytes + self.action_TA.nbytes + pictures


def require_libraries(store: Store) -> None:
    """Raise InputError when what reads RLDS is not installed."""
    try:
        import google_crc32c  # noqa: F401
        import tensorflow_datasets  # noqa: F401
    except ImportError as error:
        raise InputError(f"{store}: reading RLDS needs {error.name}: pip install 'vlarge[rlds]'") from error


class Features:
    """The features of the steps by their names here: `observation.images.X`, `observation.state`, `action`, ...

    cameras: pictures of 8-bit colour or grey; depth_maps: all others. numbers: what may be state or action, with the
    number of its values.
    described: dtype and shape of each, as LeRobot has them.
    """

    def __init__(self, store: Store, file: str) -> None:
        require_libraries(store)
        self._store = store
        tree = read_json(store, file)
        self._top = _load(store, file, tree)
        self._steps = dict(_leaves(self._top["steps"].feature))
        self.cameras: dict[str, FeaturePath] = {}
        self.depth_maps: list[str] = []
        self.numbers: dict[str, int] = {}
        self.described: dict[str, dict[str, Any]] = {}
        self._paths: dict[str, FeaturePath] = {}
        for path in sorted(self._steps, key=_written_order(tree)):
            self._describe(path, self._steps[path])
        self._instruction = self._find_instruction()
        self._fps = next((n for n in FPS_NAMES if _is_number(self._metadata.get(n))), None)

    def _describe(self, path: FeaturePath, feature: Any) -> None:
        import tensorflow_datasets as tfds

        key = ".".join(path)
        shape: list[int] = [-1 if n is None else n for n in feature.shape]
        dtype = np.dtype(feature.np_dtype)
        if isinstance(feature, tfds.features.Image):
            if path[0] == "observation":
                key = IMAGE_PREFIX + ".".join(path[1:])
            if dtype == np.uint8:
                self.cameras[key] = path
            else:
                self.depth_maps.append(key)
            self.described[key] = {"dtype": "image", "shape": shape, "names": None}
        elif isinstance(feature, tfds.features.Tensor) and dtype.kind in "fiub" and min(shape, default=0) >= 0:
            self.numbers[key] = math.prod(shape)
            self.described[key] = {"dtype": dtype.name, "shape": shape or [1], "names": None}
        elif _is_text(feature):
            self.described[key] = {"dtype": "string", "shape": [1], "names": None}
        self._paths[key] = path

    @property
    def _metadata(self) -> Mapping[str, Any]:
        metadata: Any = dict(self._top.items()).get(METADATA)
        return dict(metadata.items()) if hasattr(metadata, "items") else {}

    def _find_instruction(self) -> FeaturePath | None:
        # Of each step where there is one; else of the whole episode.
        texts = [path for path, feature in self._steps.items() if _is_text(feature)]
        known = [path for path in INSTRUCTIONS if path in texts]
        named = sorted(path for path in texts if "instruction" in path[-1])
        of_episode = sorted(
            name for name, feature in self._metadata.items() if _is_text(feature) and "instruction" in name
        )
        return next(iter([*known, *named, *((METADATA, name) for name in of_episode)]), None)

    @property
    def has_instruction(self) -> bool:
        return self._instruction is not None

    def check_request(self, config: Source) -> None:
        """Raise InputError for a feature that the recipe names and the dataset does not have."""
        for name, key in (("state_key", config.state_key), ("action_key", config.action_key)):
            if key not in self.numbers:
                known = ", ".join(self.numbers) or "none that has a fixed shape"
                raise InputError(
                    f"{self._store}: no numeric feature {key!r}; set data.{name} to one of: {known}"
                    f"{did_you_mean(key, self.numbers)}"
                )
        for key in config.cameras:
            if key not in self.cameras:
                known = ", ".join(self.cameras) or "none"
                raise InputError(
                    f"{self._store}: no camera {key!r} (data.cameras); it has: {known}{did_you_mean(key, self.cameras)}"
                )

    def parser(self, state_key: str, action_key: str, camera_keys: Sequence[str]) -> StepsParser:
        """Reads these features, and no other, out of records."""
        pictures = {key: self.cameras[key] for key in camera_keys}
        used = [self._paths[state_key], self._paths[action_key], *pictures.values()]
        whole = {name: self._metadata[name] for name in (self._fps,) if name}
        if self._instruction and self._instruction[0] == METADATA:
            whole[self._instruction[1]] = self._metadata[self._instruction[1]]
        elif self._instruction:
            used.append(self._instruction)
        steps = {path: self._steps[path] for path in used}
        numbers = self._paths[state_key], self._paths[action_key]
        return StepsParser(steps, whole, numbers, pictures, self._instruction, self._fps)


def _load(store: Store, file: str, tree: Any) -> Any:
    import tensorflow_datasets as tfds
    from google.protobuf.json_format import ParseError

    for kind, name in _names(tree):
        if not (_is_dtype(name) if kind == "dtype" else name.startswith(TRUSTED_CLASSES)):
            what = "dtype" if kind == "dtype" else "class"
            raise Refused(store, "bad_features", file, f"it has a feature of the unknown {what} {name!r:.80}")
    try:
        top = tfds.features.FeatureConnector.from_json(tree)
    except (ParseError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise Refused(store, "bad_features", file, f"it does not describe features ({first_line(error)})") from error
    steps = top["steps"] if isinstance(top, tfds.features.FeaturesDict) and "steps" in top else None
    if not isinstance(steps, tfds.features.Dataset) or not isinstance(steps.feature, tfds.features.FeaturesDict):
        raise Refused(store, "bad_features", file, "it has no dataset 'steps' of named features; this is not RLDS")
    return top


def _names(tree: Any) -> Iterator[tuple[str, str]]:
    # What the library would look up beyond itself: classes anywhere, dtypes in TensorFlow.
    if isinstance(tree, dict):
        yield from ((key, tree[key]) for key in (*CLASS_KEYS, "dtype") if isinstance(tree.get(key), str))
        yield from (("dtype", "") for key in TYPED if _is_untyped(tree.get(key)))
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _names(child)


def _is_untyped(content: Any) -> bool:
    return isinstance(content, dict) and not any(isinstance(content.get(k), str) for k in ("dtype", *CLASS_KEYS))


def _is_dtype(name: str) -> bool:
    try:
        return name == "string" or bool(np.dtype(name))
    except TypeError:
        return False


def _leaves(feature: Any, path: FeaturePath = ()) -> Iterator[tuple[FeaturePath, Any]]:
    # Features with one value per step. What is a sequence within a step has no fixed size and is not read.
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.FeaturesDict):
        for name, child in feature.items():
            yield from _leaves(child, (*path, name))
    elif isinstance(feature, tfds.features.Tensor | tfds.features.Image):
        yield path, feature


def _written_order(tree: Any) -> Callable[[FeaturePath], tuple[int, FeaturePath]]:
    # The library's order is arbitrary; the file's is not.
    def paths(node: Any, path: FeaturePath) -> Iterator[FeaturePath]:
        for name, child in (_below(node, "featuresDict", "features") or {}).items():
            yield from paths(_below(child, "sequence", "feature") or child, (*path, name))
        yield path

    order = {path[1:]: i for i, path in enumerate(paths(tree, ())) if path[:1] == ("steps",)}
    return lambda path: (order.get(path, len(order)), path)


def _below(node: Any, *names: str) -> Any:
    for name in names:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _is_number(feature: Any) -> bool:
    return getattr(feature, "shape", None) == () and np.dtype(feature.np_dtype).kind in "fiu"


def _is_text(feature: Any) -> bool:
    return getattr(feature, "shape", None) == () and np.dtype(feature.np_dtype).kind in "OSU"


def first_line(error: Exception) -> str:
    """The beginning of a library's message, in one line."""
    lines = str(error).strip().splitlines()
    return f"{lines[0]:.120}" if lines else type(error).__name__


class StepsParser:
    """Turns the payload of a record into steps. Threads may share one."""

    def __init__(
        self,
        steps: Mapping[FeaturePath, Any],
        whole: Mapping[str, Any],
        numbers: tuple[FeaturePath, FeaturePath],
        pictures: Mapping[str, FeaturePath],
        instruction: FeaturePath | None,
        fps: str | None,
    ) -> None:
        import tensorflow_datasets as tfds

        nested: dict[str, Any] = {}
        for path, feature in steps.items():
            level = nested
            for name in path[:-1]:
                level = level.setdefault(name, {})
            level[path[-1]] = feature
        self._top = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(nested), METADATA: dict(whole)})
        self._decoders = {"steps": tfds.decode.SkipDecoding()}  # pictures stay encoded
        self.camera_keys = tuple(pictures)
        self._features = steps
        self._numbers, self._pictures, self._instruction, self._fps = numbers, pictures, instruction, fps

    def parse(self, payload: bytes) -> Steps:
        """Raises BrokenFile when the record lacks state or action, or has not one value of everything per step."""
        example = self._deserialize(payload)
        state_TA, action_TA = (self._array(example, path) for path in self._numbers)
        pictures = {key: _value(example, path) for key, path in self._pictures.items()}
        pictures = {key: list(values) for key, values in pictures.items() if values is not None}
        tasks = self._tasks(example, len(state_TA))
        for name, values in {"the action": action_TA, "the instruction": tasks, **pictures}.items():
            if len(values) != len(state_TA):
                raise BrokenFile("missing_frame", f"{name} has {len(values)} steps where the state has {len(state_TA)}")
        fps = float(example[METADATA].get(self._fps) or 0) if self._fps else 0.0
        return Steps(state_TA, action_TA, tasks, pictures, fps)

    def _deserialize(self, payload: bytes) -> Mapping[str, Any]:
        from google.protobuf.message import DecodeError

        try:
            example: Mapping[str, Any] = self._top.deserialize_example_np(payload, decoders=self._decoders)
        except (DecodeError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise BrokenFile("bad_record", f"it does not hold what is declared ({first_line(error)})") from error
        return example

    def _array(self, example: Mapping[str, Any], path: FeaturePath) -> np.ndarray:
        # float32 [T, dim]; tensors that are packed into bytes are unpacked.
        values, feature = _value(example, path), self._features[path]
        if values is None:
            raise BrokenFile("missing_column", f"the record has no {'/'.join(path)!r}")
        shape = len(values), math.prod(feature.shape)
        try:
            if values.dtype == object:
                values = np.array([feature.decode_example_np(data) for data in values], feature.np_dtype)
            with np.errstate(over="ignore"):  # what float32 cannot hold is found as infinite
                return values.reshape(shape).astype(np.float32)
        except (ValueError, zlib.error) as error:
            detail = f"{'/'.join(path)!r} has not {shape[1]} values in each step ({first_line(error)})"
            raise BrokenFile("shape_mismatch", detail) from error

    def _tasks(self, example: Mapping[str, Any], length: int) -> list[str]:
        path = self._instruction
        if path is None:
            return [""] * length
        if path[0] == METADATA:
            return [_text(example[METADATA].get(path[1]) or b"")] * length
        values = _value(example, path)
        return [""] * length if values is None else [_text(data) for data in values]


def _value(example: Mapping[str, Any], path: FeaturePath) -> Any:
    found: Any = example["steps"]
    for name in path:
        found = found[name]
    return found


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
