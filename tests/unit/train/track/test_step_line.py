"""The step line and the expression that reads it belong together."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.train.track.step_line import FIELDS, STEP_LINE, parse_step_lines, step_line

NUMBER = st.floats()  # with nan and infinities


@settings(deadline=None)  # a busy machine is no fault
@given(st.integers(0, 10**9), st.fixed_dictionaries(dict.fromkeys(FIELDS, NUMBER)))
def test_every_line_is_read_back(step: int, numbers: dict[str, float]) -> None:
    (found,) = parse_step_lines(f"before\n{step_line({'step': step} | numbers)}\nafter step=3")
    assert found.pop("step") == step
    assert found == pytest.approx(numbers, rel=1e-5, nan_ok=True)


def test_the_line_stays_as_it_is(record: Callable[..., dict[str, Any]]) -> None:
    assert step_line(record(40, goodput=0.875)) == (
        "vlarge step=40 loss=0.025 grad_norm=0.5 lr=0.001 samples_per_s=64 step_s=0.5 data_wait_s=0.125 mfu=0.25"
        " goodput=0.875"
    )
    (found,) = parse_step_lines(step_line(record(40)))
    assert math.isnan(found["goodput"])  # which this record does not have


def test_the_page_shows_the_same_expression() -> None:
    page = (Path(__file__).parents[4] / "docs/tracking.md").read_text()
    (block,) = re.findall(r"```regex\n(.*?)```", page, re.DOTALL)
    assert "".join(block.split("\n")) == STEP_LINE.pattern
