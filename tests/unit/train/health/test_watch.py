"""The lowest rank that gives signs of life speaks for all; a run that is alone is watched too."""

import json
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from vlarge.train.config import HealthConfig
from vlarge.train.health.events import Events
from vlarge.train.health.pulse import COMMUNICATE, DATA, Pulse
from vlarge.train.health.stalls import SILENT
from vlarge.train.health.watch import Watch, watching
from vlarge.train.parallel.world import World


def watches(num: int) -> tuple[list[Pulse], list[Watch]]:
    store, pulses = dist.HashStore(), [Pulse(stall_s=0.0) for _ in range(num)]
    return pulses, [Watch(pulse, store, rank, num, 1.0, 3.0) for rank, pulse in enumerate(pulses)]


def wait_for_others(pulses: list[Pulse]) -> None:
    for pulse in pulses:
        pulse._usual_s = dict.fromkeys((COMMUNICATE, DATA), 0.0)
        pulse.move(COMMUNICATE)


def test_the_main_process_names_the_late_one_and_the_others_say_nothing() -> None:
    pulses, (main, *others) = watches(4)
    wait_for_others([pulses[0], *pulses[2:]])
    pulses[1]._usual_s = {DATA: 0.0}
    pulses[1].move(DATA, lambda: "episode 3 in b.mp4")
    for other in others:
        assert other.look() == []
    (notice,) = main.look()
    assert (notice.ranks, notice.section, notice.detail) == ((1,), DATA, "episode 3 in b.mp4")
    assert main.look() == []


def test_the_next_one_takes_over_from_a_silent_main_process() -> None:
    _, (main, second, third) = watches(3)
    main.look()
    told = [(second.look(), third.look()) for _ in range(8)]
    notices = [notice for seconds, _ in told for notice in seconds]
    assert [(notice.ranks, notice.section) for notice in notices] == [((0,), SILENT)]
    assert not any(thirds for _, thirds in told)


def test_nobody_waits_for_a_rank_that_has_not_begun() -> None:
    _, (main, _, _) = watches(3)
    assert main.look() == []


def test_a_run_of_one_process_names_its_own_stall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.pulse.begin_step(12)
    with world.pulse.section(DATA):
        pass
    with watching(world, Events(tmp_path, 0, world.pulse), HealthConfig(beat_s=0.01, stall_s=0.05)):
        with world.pulse.section(DATA, lambda: "episode 3 in b.mp4"):
            wait_for(tmp_path / "events.jsonl", 1)
        wait_for(tmp_path / "events.jsonl", 2)
    first, second = (json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())
    assert (first["step"], first["rank"], first["kind"], first["section"]) == (12, 0, "stall", "data")
    assert first["event"].endswith("episode 3 in b.mp4")
    assert (second["kind"], second["ranks"]) == ("stall over", [0])
    assert first["event"] in capsys.readouterr().err


def wait_for(path: Path, num_lines: int) -> None:
    deadline_s = time.monotonic() + 10
    while not path.exists() or len(path.read_text().splitlines()) < num_lines:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_lost_store_is_told_once_and_training_goes_on(tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False)
    world = World(0, 2, meeting=client)
    with watching(world, Events(tmp_path, 0, world.pulse), HealthConfig(beat_s=0.01)):
        while not server.check(["beats/0"]):
            time.sleep(0.01)
        del server
        wait_for(tmp_path / "events.jsonl", 1)
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert "nobody is watched any more" in line
