"""The scaling check against figures worked out by hand from the papers' tables."""

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from vlarge.cluster.plan.claims import Check, check_published, find_cells, published
from vlarge.cluster.plan.quantities import Interval, duration, parse, rounded, speedup
from vlarge.cluster.plan.scrutiny import check_own
from vlarge.contracts import InputError

ROWS = {row.claim: row for row in check_published()}

# claim -> (the figure's name, its value by long division, its verdict)
EXPECTED = {
    "~40× faster epoch": ("speedup", 900 / 22, "holds"),
    "97.57% less time": ("time_saved", 0.975556, "holds"),
    "scaling, 32 → 64 nodes": ("efficiency", 1.028226, "beyond linear"),
    "scaling, 64 → 128 nodes": ("efficiency", 0.849315, "holds"),
    "scaling, 32 → 128 nodes": ("efficiency", 0.873288, "holds"),
    "batch 128 → 256": ("speedup", 0.9125, "no gain"),
    "batch 256 → 512": ("speedup", 2.181818, "not by batch size"),
    "3.5× over LeRobot": ("speedup", 4.5, "mislabelled"),
    "188% by packing": ("speedup", 1.882176, "holds as a ratio"),
    "165% for π0.5": ("speedup", 1.652632, "holds as a ratio"),
    ">140% speed by FP8": ("speedup_by_bytes", 1.577287, "a ratio at best"),
    "36.6% smaller by FP8": ("saved", 0.369392, "holds"),
    "+59.25%, π0.5 on LIBERO": ("increase", 0.592541, "holds"),
    "+43.96%, GR00T on LIBERO": ("increase_in_full", 0.414687, "mislabelled"),
    "+17.84%, π0 on ManiSkill": ("increase_in_full", -0.243586, "mislabelled"),
    "+126.67% in RL": ("increase", 1.266747, "holds"),
}


def test_every_claim_has_its_row() -> None:
    assert list(ROWS) == list(EXPECTED)
    assert all(row.raw and row.gives and row.why for row in ROWS.values())


@pytest.mark.parametrize("claim", EXPECTED)
def test_figures_follow_from_the_raw_numbers(claim: str) -> None:
    name, value, verdict = EXPECTED[claim]
    assert ROWS[claim].values[name] == pytest.approx(value, abs=1e-6)
    assert ROWS[claim].verdict == verdict


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ("~40× faster epoch", "40.9×"),
        ("97.57% less time", "97.56%"),
        ("scaling, 32 → 64 nodes", "2.06×"),
        ("scaling, 64 → 128 nodes", "1.70×"),
        ("scaling, 64 → 128 nodes", "84.9%"),
        ("scaling, 32 → 128 nodes", "87.3%"),
        ("batch 256 → 512", "2.18×"),
        ("3.5× over LeRobot", "4.50×"),
        ("+59.25%, π0.5 on LIBERO", "+59.25%"),
        ("+126.67% in RL", "+126.67%"),
    ],
)
def test_figures_are_shown(claim: str, text: str) -> None:
    assert text in ROWS[claim].gives


def test_the_lerobot_ratio_is_the_scaling_over_nodes() -> None:
    assert ROWS["3.5× over LeRobot"].values["node_scaling"] == pytest.approx(2.55 / 0.73)
    assert "2.55 h / 0.73 h = 3.49×" in ROWS["3.5× over LeRobot"].why


def test_one_cell_alone_gives_the_rl_figure() -> None:
    assert find_cells(published(), Decimal("126.67")) == ["LIBERO π0 32 GPUs, full async over disaggregated sync"]
    assert find_cells(published(), Decimal("59.25")) == ["libero pi05 32 GPUs, streamer over colocated"]


def test_the_packages_numbers_are_the_published_ones(shared: Path) -> None:
    theirs = tomllib.loads((shared / "plan/published.toml").read_text(), parse_float=Decimal)

    def check(ours: object, theirs: object) -> None:
        if isinstance(theirs, dict):
            assert isinstance(ours, dict)
            for key, value in theirs.items():
                check(ours[key], value)
        elif isinstance(theirs, list):
            assert isinstance(ours, list)
            for mine, other in zip(ours, theirs, strict=True):
                check(mine, other)
        else:
            assert ours == theirs

    check(published(), theirs)


def test_a_printed_number_is_whatever_rounds_to_it() -> None:
    assert rounded(Decimal("0.73")) == pytest.approx((0.73, 0.725, 0.735))
    assert rounded(22) == (22.0, 21.5, 22.5)
    ratio = speedup(duration(48, "min"), duration(22, "min"))
    assert ratio == pytest.approx((48 / 22, 47.5 / 22.5, 48.5 / 21.5))
    assert Interval(1, 1, 2).meets(Interval(3, 2, 4))
    assert not Interval(1, 1, 2).meets(Interval(3, 2.1, 4))


@pytest.mark.parametrize(
    ("text", "value", "low"),
    [
        ("15h", 54000, 52200),
        ("22 min", 1320, 1290),
        ("2.85s", 2.85, 2.845),
        ("1h30min", 5400, 5370),
        ("250 ms", 0.25, 0.2495),
        ("2 days", 172800, 129600),
        ("74 samples/s", 74, 73.5),
        ("120/min", 2, 119.5 / 60),
    ],
)
def test_units_are_read(text: str, value: float, low: float) -> None:
    size = parse(text).size
    assert (size.value, size.low) == pytest.approx((value, low))


@pytest.mark.parametrize(
    "text", ["", "15", "h", "15 parsecs", "1.4k samples/s", "74 samples/fortnight", "0s", "-3s", "3s!"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


def own(claim: str, before: str = "4.71s", after: str = "2.85s") -> Check:
    return check_own(before, after, claim)[1]


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("1.65x", "holds"),
        ("1.65×", "holds"),
        ("165%", "holds as a ratio"),
        ("65%", "holds"),
        ("+65%", "holds"),
        ("+165%", "does not follow"),
        ("39.5%", "holds"),
        ("-39.5%", "holds"),
        ("+39.5%", "does not follow"),
        ("-65%", "does not follow"),
        ("2x", "does not follow"),
    ],
)
def test_a_claim_is_held_against_the_numbers(claim: str, verdict: str) -> None:
    assert own(claim).verdict == verdict


def test_rates_are_faster_when_larger() -> None:
    assert own("188%", "100 samples/s", "188 samples/s").verdict == "holds as a ratio"
    assert check_own("188 samples/s", "100 samples/s")[0].verdict == "slower"
    assert check_own("10s", "10s")[0].verdict == "no gain"


def test_efficiency_counts_the_gpus() -> None:
    row = check_own("2.55h", "0.73h", gpus=(256, 1024))[-1]
    assert row.values["efficiency"] == pytest.approx(0.873288, abs=1e-6)
    assert check_own("2.55h", "1.24h", gpus=(256, 512))[-1].verdict == "beyond linear"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("3h", "74 samples/s", "", None), "cannot compare"),
        (("74 samples/s", "74 tokens/s", "", None), "cannot compare"),
        (("3h", "2h", "faster", None), "cannot read the claim 'faster'"),
        (("3h", "2h", "", (0, 8)), "must be at least 1"),
    ],
)
def test_what_cannot_be_checked_is_said(arguments: tuple[str, str, str, tuple[int, int] | None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_own(*arguments)
