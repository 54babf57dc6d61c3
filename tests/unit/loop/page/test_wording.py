"""Numbers as people read them, and markup that escapes."""

import pytest

from vlarge.loop.page import wording
from vlarge.loop.page.markup import join, tag


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0012, "1.2 ms"),
        (0.19, "190 ms"),
        (1.5, "1.5 s"),
        (47.2, "47 s"),
        (59.96, "1 min 0 s"),
        (8000.0, "2 h 13 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(("p", "text"), [(1.0, "1"), (0.0312, "0.031"), (0.001, "0.001"), (2**-37, "7.3 × 10⁻¹²")])
def test_probability(p: float, text: str) -> None:
    assert wording.probability(p) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (99.2, "99.2"), (0.0948, "0.0948"), (1e-5, "1e−5"), (0.0, "0"), (None, "–")],
)
def test_number(value: float | None, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("num", "text"), [(512, "512 bytes"), (999_700, "1.0 MB"), (1_100_000_000, "1.1 GB"), (3e15, "3000 TB")]
)
def test_size(num: float, text: str) -> None:
    assert wording.size(num) == text


def test_ranges_and_counts() -> None:
    assert wording.ranges([3, 1, 2, 7, 9, 10]) == "1–3, 7, 9–10"
    assert wording.count(1, "step") == "1 step"
    assert wording.count(1200, "step") == "1,200 steps"


def test_text_and_attributes_are_escaped_once() -> None:
    inner = tag("b", "a < b & c")
    assert inner == "<b>a &lt; b &amp; c</b>"
    assert tag("p", inner, "<i>", class_='"x"') == '<p class="&quot;x&quot;"><b>a &lt; b &amp; c</b>&lt;i&gt;</p>'
    assert tag("video", muted=True, loop=False, src=None, aria_label="x") == '<video muted aria-label="x"></video>'
    assert join(["<", inner]) == "&lt;<b>a &lt; b &amp; c</b>"
