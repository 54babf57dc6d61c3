"""Signals ask to stop and are handed back; what the user has told NCCL stays."""

import os
import signal
from pathlib import Path

import pytest

from vlarge.train.health.signals import STOPPING, stop_on_signal
from vlarge.train.health.timeouts import record_flights, shorten
from vlarge.train.parallel.world import World


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_asks_to_stop(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in STOPPING]
    with stop_on_signal() as received:
        os.kill(os.getpid(), number)
        assert received == [number]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(each) for each in STOPPING] == before
    said = capfd.readouterr().err
    assert said.startswith(f"{number.name}: stopping once this step is done and saved")
    assert ("Ctrl-C again leaves at once" in said) == (number is signal.SIGINT)


@pytest.fixture
def no_torch_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TORCH_FR_", "TORCH_NCCL_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.usefixtures("no_torch_settings")
def test_flights_are_recorded_into_the_run(tmp_path: Path) -> None:
    record_flights(tmp_path)
    assert int(os.environ["TORCH_FR_BUFFER_SIZE"]) > 0
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight_recorder_rank_"


@pytest.mark.usefixtures("no_torch_settings")
def test_what_the_user_set_stays_by_its_older_name_too(tmp_path: Path) -> None:
    os.environ |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "mine"}
    record_flights(tmp_path)
    assert "TORCH_FR_BUFFER_SIZE" not in os.environ
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == "mine"


def test_a_run_of_one_process_has_no_timeouts() -> None:
    shorten(World(), 1.0)
