"""train.micro_batch_tokens = "auto": what is found fits, and is the most that does."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlarge import recipe as recipes
from vlarge.contracts import InputError
from vlarge.recipe import Recipe
from vlarge.train import hardware
from vlarge.train.largest import SPARE, Peak, fitting, largest_micro_batch
from vlarge.train.run_dir import recorded
from vlarge.train.track.jsonl import read_lines
from vlarge.train.trainer import Trainer


@dataclass
class Machine:
    """Takes `fixed` bytes or `per_token` for each, whichever is more; notes what was tried."""

    fixed: float
    per_token: float
    room: float
    most_samples: int
    sample_tokens: int = 7
    tried: list[float] = field(default_factory=list)

    @property
    def engine(self) -> Any:
        return self

    def state(self) -> None: ...

    def clear(self) -> None: ...

    def room_bytes(self) -> float:
        return self.room / (1 - SPARE)

    def peak(self, num_samples: int) -> Peak:
        tokens = num_samples * self.sample_tokens
        self.tried.append(max(self.fixed, self.per_token * tokens))
        return Peak(tokens, self.tried[-1])


@given(
    fixed=st.integers(0, 1000), per_token=st.integers(1, 20), room=st.integers(1000, 10**6), most=st.integers(1, 10**4)
)
def test_nothing_tried_or_found_takes_more_than_there_is(fixed: int, per_token: int, room: int, most: int) -> None:
    machine = Machine(fixed, per_token, room, most)
    found = largest_micro_batch(machine)  # type: ignore[arg-type]
    assert machine.sample_tokens <= found <= most * machine.sample_tokens
    assert max(machine.tried) <= room
    assert max(fixed, per_token * found) <= room or found == machine.sample_tokens
    if 3 * fixed < room:  # else half of the room is taken whatever is tried
        assert per_token * (found + 2 * machine.sample_tokens) > 0.45 * room or found == most * machine.sample_tokens


def test_what_grows_along_a_line_is_followed_to_its_end() -> None:
    straight, bent = [Peak(10, 1000), Peak(20, 1500), Peak(40, 2500)], [Peak(10, 1000), Peak(20, 1000), Peak(40, 2000)]
    assert fitting(straight, 5000) == pytest.approx(90)
    assert fitting(bent, 5000) == pytest.approx(100)


def test_a_sample_that_does_not_fit_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"a sample of 7 tokens takes .*train\.recompute"):
        largest_micro_batch(Machine(2000, 1, 1000, 4))  # type: ignore[arg-type]


def test_a_run_finds_its_micro_batches_and_keeps_them(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = recipes.replace(
        recipes.replace(small, "train.micro_batch_tokens", "auto"), "run.dir", str(tmp_path / "auto")
    )
    Trainer(recipes.replace(auto, "train.steps", 2)).train()
    roomy = recorded(tmp_path / "auto")
    assert roomy is not None
    assert roomy.train.budget_tokens > 0  # all of a share
    plain = recipes.replace(recipes.replace(small, "run.dir", str(tmp_path / "plain")), "train.steps", 2)
    Trainer(plain).train()
    losses = [[line["loss"] for line in read_lines(tmp_path / run / "steps.jsonl")] for run in ("auto", "plain")]
    assert losses[0] == losses[1]  # nothing of what was tried is left
    monkeypatch.setattr(hardware, "room_bytes", lambda *_: pytest.fail("it is known already"))
    resumed = Trainer(auto, resume=True)
    assert resumed.recipe.train.micro_batch_tokens == roomy.train.micro_batch_tokens


def test_less_memory_makes_smaller_micro_batches(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(room: float) -> int:
        monkeypatch.setattr(hardware, "room_bytes", lambda *_: room)
        auto = recipes.replace(small, "train.micro_batch_tokens", "auto")
        return Trainer(recipes.replace(auto, "run.dir", str(tmp_path / "run"))).recipe.train.budget_tokens

    whole = tokens(1e12)
    assert 0 < tokens(3e6) < whole
