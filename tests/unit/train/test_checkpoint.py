"""A checkpoint is good or absent (law T3), whatever happens while it is written. One process, no process group."""

import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlarge.contracts import InputError
from vlarge.train.checkpoint import Checkpoints, Reader


def state_of(value: float = 1.0) -> dict[str, Any]:
    """Every kind of thing that a state may hold."""
    return {
        "model": {"embed.weight": torch.full((6, 4), value), "frozen": torch.arange(3), "empty": torch.zeros(0, 2)},
        "ema": {"embed.weight": torch.full((6, 4), value, dtype=torch.bfloat16)},
        "optimizer": {"state": {"embed.weight": {"step": torch.tensor(value)}}, "groups": [{"betas": (0.9, 0.95)}]},
        "position": {"step": int(value), "order": "seed 1", "rng": torch.arange(8, dtype=torch.uint8)},
    }  # fmt: skip


def export(folder: Path, read: Reader) -> None:
    folder.mkdir()
    (folder / "policy.txt").write_text(str(read("ema.embed.weight").sum().item()))


def flat(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict | list):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from flat(value, f"{name}.{key}")
    else:
        yield name, state


def same(a: Any, b: Any) -> bool:
    one, two = dict(flat(a)), dict(flat(b))
    return one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)


def equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


def names_in(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_what_is_saved_comes_back_in_place(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path, 0).save(7, state_of(2.0), export)
    assert folder == tmp_path / "checkpoints" / "00000007"
    assert (folder / "pretrained_model" / "policy.txt").read_text() == "48.0"
    target = state_of(0.0)
    weight = target["model"]["embed.weight"]
    checkpoints = Checkpoints(tmp_path, 0)
    assert checkpoints.load(target) == checkpoints.last() == folder
    assert same(target, state_of(2.0))
    assert target["model"]["embed.weight"] is weight
    assert (tmp_path / "checkpoints" / "last").resolve() == folder.resolve()


def test_what_is_saved_is_what_was_before_the_next_update(tmp_path: Path) -> None:
    checkpoints, state = Checkpoints(tmp_path, 0), state_of(1.0)
    for step in (1, 2):  # the second into the buffers of the first
        expected = {name: value.clone() if isinstance(value, Tensor) else value for name, value in flat(state)}
        checkpoints.begin(step, state, export)
        checkpoints.fence()
        for value in (value for _, value in flat(state) if isinstance(value, Tensor)):
            value.add_(5)
        state["position"]["step"] += 5
        checkpoints.finish()
        target = state_of(0.0)
        Checkpoints(tmp_path, 0).load(target)
        assert same(dict(flat(target)), expected)


def test_begin_returns_while_the_thread_works_and_the_next_waits_for_it(tmp_path: Path) -> None:
    checkpoints, may_go_on = Checkpoints(tmp_path, 0), Event()

    def slow(folder: Path, read: Reader) -> None:
        assert may_go_on.wait(30)
        export(folder, read)

    checkpoints.begin(1, state_of(1.0), slow)
    assert checkpoints.last() is None
    may_go_on.set()
    checkpoints.begin(2, state_of(2.0), slow)
    assert checkpoints.last() in [tmp_path / "checkpoints" / name for name in ("00000001", "00000002")]
    assert checkpoints.finish() == tmp_path / "checkpoints" / "00000002"
    assert names_in(tmp_path) == ["00000001", "00000002", "last"]


def test_the_buffers_are_allocated_once(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0)
    places = []
    for step in (1, 2):
        checkpoints.save(step, state_of(step), export)
        places.append([value.data_ptr() for _, value in checkpoints._staging.tensors()])
    assert places[0] == places[1]


def test_a_step_is_saved_once_and_another_runs_is_not_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0)
    checkpoints.save(1, state_of(1.0), export)
    before = (checkpoints.last() / "training_state" / ".metadata").stat()
    checkpoints.save(1, state_of(1.0), export)
    resumed = Checkpoints(tmp_path, 0)
    resumed.load(state_of())
    resumed.save(1, state_of(1.0), export)
    assert (checkpoints.last() / "training_state" / ".metadata").stat() == before
    with pytest.raises(InputError, match="it is there already, of an earlier run"):
        Checkpoints(tmp_path, 0).save(1, state_of(9.0), export)
    assert (checkpoints.last() / "training_state" / ".metadata").stat() == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_what_is_not_finite_is_refused(bad: float, dtype: torch.dtype, tmp_path: Path) -> None:
    if dtype == torch.float8_e4m3fn and bad == bad:
        pytest.skip("FP8 has no infinity")
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, {"w": torch.zeros(4).to(dtype)}, lambda *_: None)
    spoilt = torch.zeros(4)
    spoilt[2] = bad
    checkpoints.begin(2, {"w": spoilt.to(dtype)}, lambda *_: None)
    with pytest.raises(
        InputError, match=r"could not save .*00000002: not finite: w; the checkpoints before it are untou"
    ):
        checkpoints.finish()
    assert names_in(tmp_path) == ["00000001", "last"]
    checkpoints.save(2, {"w": torch.zeros(4).to(dtype)}, lambda *_: None)
    assert names_in(tmp_path) == ["00000002", "last"]


def test_the_next_begin_raises_what_the_last_save_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0)
    checkpoints.begin(1, {"w": torch.tensor(float("nan"))}, export)
    with pytest.raises(InputError, match="not finite: w"):
        checkpoints.begin(2, {"w": torch.tensor(0.0)}, export)


def test_old_checkpoints_go_and_promoted_ones_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    for step in range(1, 6):
        folder = checkpoints.save(step, state_of(step), export)
        if step == 2:
            (folder / "promoted").touch()
    assert names_in(tmp_path) == ["00000002", "00000004", "00000005", "last"]


def test_what_killed_runs_left_is_removed_and_never_read(tmp_path: Path) -> None:
    for name in (".00000001.partial", ".00000002.removed"):
        (tmp_path / "checkpoints" / name / "training_state").mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path, 0)
    with pytest.raises(InputError, match="has no checkpoint"):
        checkpoints.load(state_of())
    checkpoints.save(3, state_of(), export)
    assert names_in(tmp_path) == ["00000003", "last"]


def test_an_export_that_fails_leaves_nothing_and_our_mistakes_keep_their_traceback(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0)
    checkpoints.save(1, state_of(), export)
    with pytest.raises(InputError, match=r"00000002: .*training_state does not hold ema.head; the checkpoints before"):
        checkpoints.save(2, state_of(), lambda folder, read: read("ema.head"))
    with pytest.raises(RuntimeError, match=r"Traceback(?s:.*)ZeroDivisionError"):
        checkpoints.save(2, state_of(), lambda folder, read: 1 // 0)
    assert names_in(tmp_path) == ["00000001", "last"]


def test_a_state_without_its_frozen_weights_is_refused(tmp_path: Path) -> None:
    checkpoints, whole = Checkpoints(tmp_path, 0), {"model.frozen": (3,), "model.embed.weight": (6, 4)}
    checkpoints.begin(1, state_of(), export, must_hold=whole)
    checkpoints.finish()
    state = state_of()
    del state["model"]["frozen"]
    checkpoints.begin(2, state, export, must_hold=whole)
    with pytest.raises(InputError, match=r"00000002: model.frozen is not in the state"):
        checkpoints.finish()
    checkpoints.begin(2, state_of(), export, must_hold={"model.frozen": (4,)})
    with pytest.raises(InputError, match=r"00000002: model.frozen is \[3\] and must be \[4\]"):
        checkpoints.finish()
    assert names_in(tmp_path) == ["00000001", "last"]


def test_the_reader_gives_names_shapes_and_values(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def look(folder: Path, read: Reader) -> None:
        seen.update({name: (read.shape(name), read(name)) for name in read.names})

    Checkpoints(tmp_path, 0).save(1, state_of(3.0), look)
    assert seen["position.order"] == (None, "seed 1")
    assert seen["model.empty"][0] == (0, 2)
    assert torch.equal(seen["model.embed.weight"][1], torch.full((6, 4), 3.0))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match=r"could not save .*00000001: .*checkpoints.*: (File exists|Not a directory)"):
        Checkpoints(tmp_path, 0).save(1, state_of(), export)


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Writing fails beyond that size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, {"w": torch.zeros(10**6)}, lambda *_: None)
    with (
        files_of_at_most(10**6),
        pytest.raises(InputError, match=r"00000002: .*File too large; the checkpoints before"),
    ):
        checkpoints.save(2, {"w": torch.ones(10**6)}, lambda *_: None)
    assert names_in(tmp_path) == ["00000001", "last"]
    checkpoints.load(target := {"w": torch.ones(10**6)})
    assert not target["w"].any()


def without(state: dict[str, Any], *path: str) -> dict[str, Any]:
    del state[path[0]][path[1]]
    return state


def replaced(state: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    state["model"][name] = value
    return state


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (without(state_of(), "model", "frozen"), "it has model.frozen, which this run has not"),
        (replaced(state_of(), "more", torch.zeros(1)), "it lacks model.more"),
        (
            replaced(state_of(), "frozen", torch.arange(4)),
            r"Size mismatch: model.frozen is \[3\] int64 in it and \[4\]",
        ),
        (replaced(state_of(), "frozen", torch.zeros(3)), r".*frozen is \[3\] int64 in it and \[3\] float32 here"),
        (replaced(state_of(), "frozen", 3), r".*frozen is \[3\] int64 in it and no tensor here"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0)
    checkpoints.save(1, state_of(), export)
    with pytest.raises(InputError, match=rf"00000001 does not fit this run \({message}"):
        checkpoints.load(asked)


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: (state / "__0_0.distcp").unlink(), "__0_0.distcp is not there"),
        (lambda state: cut(state / "__0_0.distcp", 1000), "__0_0.distcp has 1000 bytes of"),
        (lambda state: (state / ".metadata").unlink(), r"\.metadata is not there"),
        (lambda state: cut(state / ".metadata", 1000), r"\.metadata is not what was saved"),
        (lambda state: (state / ".metadata.crc32").unlink(), r"\.metadata\.crc32 is not there"),
        (lambda state: flip(state / ".metadata", 0.5), r"\.metadata is not what was saved"),
        (
            lambda state: (state / "__0_0.distcp").write_bytes(bytes((state / "__0_0.distcp").stat().st_size)),
            "is not w",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_loads(spoil: Any, message: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0)
    first = checkpoints.save(1, state_of(1.0), export)
    second = checkpoints.save(2, state_of(2.0), export)
    spoil(second / "training_state")
    with pytest.raises(
        InputError, match=rf"{second} is damaged \(.*{message}.*; remove {second} and resume from 00000001"
    ):
        checkpoints.load(state_of())
    checkpoints.load(target := state_of(0.0), first)
    assert same(target, state_of(1.0))


def flip(path: Path, place: float) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


@given(st.floats(0, 1, exclude_max=True))
@settings(max_examples=100, deadline=None)
def test_no_changed_bit_is_loaded(saved: Path, place: float) -> None:
    shard = saved / "checkpoints/00000001/training_state/__0_0.distcp"
    flip(shard, place)
    target = state_of(0.0)
    refused = refusal(saved, target)
    flip(shard, place)
    if refused is None:
        assert same(target, state_of(1.0))  # between two parts, or between the records of one
    else:
        told = re.fullmatch(r"\S* is damaged \((.*)\); remove \S* and resume from the beginning.*", refused)
        assert told is not None, refused
        assert " is not what was saved" in told[1], refused
        assert len(told[1]) < 300, refused


def refusal(run_dir: Path, target: dict[str, Any]) -> str | None:
    try:
        Checkpoints(run_dir, 0).load(target)
    except InputError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    Checkpoints(folder, 0).save(1, state_of(1.0), export)
    return folder


KILLED = """
import os, sys
from pathlib import Path
import torch
from vlarge.train.checkpoint import Checkpoints, checkpoints, shelf

def die(*_):
    os.kill(os.getpid(), 9)

def dying_at(place, run):
    saver = Checkpoints(run, 1)
    saver.save(1, {"w": torch.full((1000,), 1.0)}, lambda *_: None)
    export = lambda *_: None
    if place == "before a shard":
        checkpoints.write_shards = die
    elif place == "after the shards":
        checkpoints.write_metadata = die
    elif place == "in the export":
        export = die
    elif place == "before its name":
        shelf.Path.rename = die
    elif place == "before it is last":
        shelf.Path.replace = die
    else:
        shelf.shutil.rmtree = lambda path, **_: die() if "removed" in path.name else None
    saver.begin(2, {"w": torch.full((1000,), 2.0)}, export)
    saver.finish()

for place in sys.argv[2:]:
    child = os.fork()
    if not child:
        dying_at(place, Path(sys.argv[1]) / place)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == 9, place
"""


def test_a_process_killed_at_any_point_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    before = "before a shard", "after the shards", "in the export", "before its name"
    after = "before it is last", "before the old one is removed"
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, *before, *after], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for place, value in [*((place, 1.0) for place in before), *((place, 2.0) for place in after)]:
        checkpoints = Checkpoints(tmp_path / place, 1)
        checkpoints.load(target := {"w": torch.zeros(1000)})
        assert set(target["w"].tolist()) == {value}, place
        assert (tmp_path / place / "checkpoints" / "last" / "training_state").is_dir()
        checkpoints.save(int(value), target, lambda *_: None)
        assert (tmp_path / place / "checkpoints" / "last").resolve().name == f"{int(value):08d}"
        checkpoints.save(3, target, lambda *_: None)
        assert names_in(tmp_path / place) == ["00000003", "last"], place


KILLED_SOMETIME = """
import sys
import time
from pathlib import Path
import torch
from vlarge.train.checkpoint import Checkpoints

checkpoints = Checkpoints(Path(sys.argv[1]), 1)
step = int(checkpoints.last().name) if checkpoints.last() else 0
print("ready", flush=True)
while True:
    step += 1
    state = {str(index): torch.full((2**18,), float(step)) for index in range(32)}
    checkpoints.begin(step, {"model": state}, lambda *_: None)
"""


@pytest.mark.long
def test_a_process_killed_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    times = random.Random(0)
    for _ in range(8):
        command = [sys.executable, "-c", KILLED_SOMETIME, tmp_path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(times.uniform(0.1, 1.0))
            child.kill()
        checkpoints = Checkpoints(tmp_path, 1)
        if checkpoints.last() is not None:
            state = {"model": {str(index): torch.zeros(2**18) for index in range(32)}}
            step = int(checkpoints.load(state).name)
            assert all(set(value.tolist()) == {float(step)} for value in state["model"].values())
    assert checkpoints.last() is not None
