"""Good datasets to damage, and what must hold of whatever is left of one."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from s3_server import SECRET, S3Server, serve

from vlarge.contracts import InputError
from vlarge.data.check import Refused
from vlarge.data.config import Source
from vlarge.data.index import Dataset, open_dataset

MAX_OPEN_S = 60
NOBODY = 65534
Copy = Callable[[str], Path]
Sealed = Callable[[Path], AbstractContextManager[None]]
Opened = Callable[[Path], Dataset]


@pytest.fixture
def sealed() -> Sealed:
    """Takes all rights to a path away for a while, from root as well."""

    @contextmanager
    def seal(path: Path) -> Iterator[None]:
        user = os.geteuid()
        path.chmod(0)
        os.seteuid(user or NOBODY)
        try:
            yield
        finally:
            os.seteuid(user)
            path.chmod(0o755)

    return seal


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's are its user's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def serve_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], S3Server]]:
    """Serves a folder of buckets, in an environment with credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with ExitStack() as stack:
        yield lambda root: stack.enter_context(serve(root))


@pytest.fixture(scope="session")
def damage(make_datasets: ModuleType) -> ModuleType:
    """The shared functions that damage a dataset; its BASE says where the episodes lie."""
    return importlib.import_module("dataset_faults")


@pytest.fixture(scope="session")
def good_sets(damage: ModuleType, make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the undamaged v3.0 and v2.1."""
    folder = tmp_path_factory.mktemp("good")
    for name in ("v3.0", "v2.1"):
        make_datasets.make(folder / name, damage.BASE[name])
    return folder


@pytest.fixture
def good_copy(good_sets: Path, tmp_path: Path) -> Copy:
    """Copies the good v3.0 or v2.1 to where it may be damaged."""

    def copy(version: str) -> Path:
        shutil.copytree(good_sets / version, tmp_path / "set")
        return tmp_path / "set"

    return copy


def wrong_samples(dataset: Dataset, make_datasets: ModuleType) -> list[tuple[object, ...]]:
    """Every picture, row and task that is not the one asked for. Rows that the dataset itself calls bad may be."""
    wrong: list[tuple[object, ...]] = []
    for episode in dataset.episodes:
        table, frames = dataset.read_table(episode), np.arange(episode.length)
        good = ~np.isin(frames, getattr(episode, "bad_rows", ()))
        for name, values, law in (
            ("state", table.state_TA, make_datasets.state_of),
            ("action", table.action_TA, make_datasets.action_of),
        ):
            assert values.dtype == np.float32
            equal = (values == law(episode.index, frames, values.shape[1])).all(1)
            wrong += [(name, episode.index, int(i)) for i in np.flatnonzero(good & ~equal)]
        texts = [make_datasets.task_text(n) for n in make_datasets.task_of(episode.index, frames, episode.length, 3)]
        wrong += [
            ("task", episode.index, i)
            for i, pair in enumerate(zip(table.tasks, texts, strict=True))
            if len(set(pair)) > 1
        ]
        for key in dataset.camera_keys:
            camera = ("observation.images.top", "observation.images.wrist").index(key)
            seen = identity_codes(dataset.read_frames(episode, key, frames.tolist()))
            meant = np.stack([make_datasets.identity_bits(camera, episode.index, i) for i in frames])
            wrong += [(key, episode.index, int(i)) for i in np.flatnonzero((seen != meant).any((1, 2)))]
    return wrong


def identity_codes(images: np.ndarray) -> np.ndarray:
    """bool [n, 6, 8]: the code painted in each image (`identity_bits` of the generator), all images at once."""
    n, height, width, _ = images.shape
    blocks = images.reshape(n, 6, height // 6, 8, width // 8, 3)[:, :, height // 24 : -(height // 24)].mean((2, 4, 5))
    low, high = blocks.min((1, 2), keepdims=True), blocks.max((1, 2), keepdims=True)
    assert (high - low > 40).all(), "a black or blank frame"
    return np.asarray(blocks > (low + high) / 2)


def _named_in(error: InputError) -> Named:
    assert "\n" not in str(error)
    assert len(str(error)) < 1000
    return {(error.fault.kind, error.fault.action, error.fault.episode)} if isinstance(error, Refused) else set()


def _late(*_: object) -> None:
    raise TimeoutError(f"opening takes more than {MAX_OPEN_S} s")


Named = set[tuple[str, str, int | None]]


@pytest.fixture
def outcome(make_datasets: ModuleType) -> Callable[[Path], tuple[list[int] | str, Named]]:
    """(usable episodes, named faults) of a dataset, or ("refused", its fault); asserts that nothing left is wrong."""

    def open_and_judge(root: Path) -> tuple[list[int] | str, Named]:
        signal.signal(signal.SIGALRM, _late)  # nothing may hang, such as on a pipe
        signal.alarm(MAX_OPEN_S)
        try:
            dataset = open_dataset(Source(path=str(root)))
        except InputError as error:
            return "refused", _named_in(error)
        finally:
            signal.alarm(0)
        for fault in dataset.faults:
            assert "" not in (fault.kind, fault.file, fault.detail)
            assert "\n" not in str(fault)
        assert wrong_samples(dataset, make_datasets) == []
        return [e.index for e in dataset.episodes], {(f.kind, f.action, f.episode) for f in dataset.faults}

    return open_and_judge
