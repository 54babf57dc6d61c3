"""Who keeps the others waiting is named, once, and who only waits is not."""

import pytest

from vlarge.train.health.pulse import COMMUNICATE, DATA, FORWARD, SAVE, Beat
from vlarge.train.health.stalls import SILENT, Notice, Stalls


def beat(number: int, section: str, rounds: int, section_s: float = 9.0, **more: object) -> Beat:
    values = {"step": 4, "entry": rounds, "late": section_s > 8} | more
    return Beat(number=number, section=section, section_s=section_s, rounds=rounds, **values)


def waiting_for(culprit: Beat, number: int = 1) -> dict[int, Beat]:
    """Rank 1 has begun one collective less than the three others, which wait in it."""
    waits = {rank: beat(number, COMMUNICATE, culprit.rounds + 1) for rank in (0, 2, 3)}
    return {1: culprit, **waits}


@pytest.fixture
def stalls() -> Stalls:
    return Stalls(look_s=1.0, silent_s=5.0)


def look(stalls: Stalls, beats: dict[int, Beat]) -> list[Notice]:
    return stalls.hear(beats) + stalls.judge()


def who(notices: list[Notice]) -> list[tuple[tuple[int, ...], str, bool]]:
    return [(notice.ranks, notice.section, notice.over) for notice in notices]


@pytest.mark.parametrize("section", [DATA, FORWARD, SAVE])
def test_the_rank_behind_is_named_once_and_once_more_when_it_is_back(stalls: Stalls, section: str) -> None:
    assert look(stalls, waiting_for(beat(1, section, 6, 7.0))) == []
    (notice,) = look(stalls, waiting_for(beat(2, section, 6, 9.4, detail="decode a.mp4"), 2))
    assert (notice.ranks, notice.section, notice.over) == ((1,), section, False)
    assert notice.text == f"rank 1: in {section} for 9 s, step 4: decode a.mp4"
    assert look(stalls, waiting_for(beat(3, section, 6, 15.0), 3)) == []
    back = beat(4, COMMUNICATE, 7, 0.1, ended_entry=6, ended_s=20.2)
    (notice,) = look(stalls, waiting_for(back, 4))
    assert (notice.ranks, notice.over) == ((1,), True)
    assert notice.text == f"rank 1 came back from {section} after 20 s"
    assert look(stalls, waiting_for(back, 5)) == []


def test_a_stall_is_named_again_when_it_comes_again(stalls: Stalls) -> None:
    assert len(look(stalls, waiting_for(beat(1, DATA, 6)))) == 1
    assert len(look(stalls, waiting_for(beat(2, FORWARD, 7, 0.1), 2))) == 1
    assert who(look(stalls, waiting_for(beat(3, DATA, 8), 3))) == [((1,), DATA, False)]


def test_old_news_of_those_who_waited_names_nobody(stalls: Stalls) -> None:
    """Rank 1 is back and has said so; the others have ended their wait and have not said so yet."""
    look(stalls, waiting_for(beat(1, DATA, 6)))
    stale = waiting_for(beat(2, FORWARD, 9, 0.1), 1)
    assert who(look(stalls, stale)) == [((1,), DATA, True)]
    assert look(stalls, waiting_for(beat(3, FORWARD, 9, 0.5), 2) | {0: beat(2, FORWARD, 9, 0.2)}) == []


def test_a_collective_that_does_not_end_on_one_rank_alone_is_named(stalls: Stalls) -> None:
    def beats(number: int) -> dict[int, Beat]:
        return {0: beat(number, COMMUNICATE, 7), 1: beat(number, COMMUNICATE, 6), 2: beat(number, COMMUNICATE, 7)}

    assert look(stalls, beats(1)) == []
    assert who(look(stalls, beats(2))) == [((1,), COMMUNICATE, False)]


def test_all_in_one_collective_is_the_network(stalls: Stalls) -> None:
    (notice,) = look(stalls, {rank: beat(1, COMMUNICATE, 6) for rank in range(4)})
    assert set(notice.ranks) == {0, 1, 2, 3}
    assert "look at the network" in notice.text


def test_all_that_wait_for_data_stand_in_one_line(stalls: Stalls) -> None:
    (notice,) = look(stalls, {rank: beat(1, DATA, 6, 9.0 + (rank == 7)) for rank in range(12)})
    assert notice.ranks[0] == 7
    assert notice.text.startswith("ranks 7, 0, 1, 2, 3, 4, 5, 6 and 4 more: in data for 10 s")


def test_silence_is_named_and_so_is_its_end(stalls: Stalls) -> None:
    silent = beat(1, FORWARD, 6, 0.5)
    notices = [look(stalls, waiting_for(silent, number)) for number in range(1, 9)]
    ((notice,),) = [each for each in notices if each]
    assert notice.section == SILENT
    assert notice.text == "rank 1: no sign of life for 6 s, last seen in forward, step 4"
    (notice,) = look(stalls, waiting_for(beat(2, FORWARD, 6, 0.5), 9))
    assert notice.text == "rank 1 gives signs of life again after 7 s"


def test_who_has_left_is_neither_late_nor_silent(stalls: Stalls) -> None:
    gone = beat(1, FORWARD, 6, 9.0, left=True)
    assert [look(stalls, {0: beat(number, FORWARD, 8, 0.1), 1: gone}) for number in range(20)] == [[]] * 20
    assert stalls.is_silent(1)
