"""The benchmark's figures are those of the dataset."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from vlarge.contracts import InputError
from vlarge.data import bench
from vlarge.data.bench import Measurement, measure


@pytest.fixture(scope="module")
def path(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "set"
    make_datasets.make(folder, make_datasets.Spec("v3.0", episodes=4, length="20", size="48x64", codec="h264", gop=4))
    return folder


def test_a_measurement_has_every_figure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LEAST_S", 0.2)
    monkeypatch.setattr(bench, "WARMUP_SAMPLES", 32)
    told: list[str] = []
    found = measure(Measurement(path=str(path), samples=64, rounds=1), told.append)
    assert found["samples_per_s"] > 0
    assert found["of_roofline"] == pytest.approx(found["samples_per_s"] / found["roofline_samples_per_s"])
    assert 0 <= found["data_wait_fraction"] <= 1
    assert found["frames_decoded_per_used"] == 1.0
    assert found["episodes_per_64"] == 4.0
    assert len(told) == 1


def test_a_full_shuffle_of_long_groups_decodes_more(make_datasets: ModuleType, tmp_path: Path) -> None:
    spec = make_datasets.Spec("v3.0", episodes=4, length="60", size="48x64", codec="h264", gop=30)
    make_datasets.make(tmp_path / "set", spec)
    m = Measurement(path=str(tmp_path / "set"), size=32, batch_size=8)
    dataset = bench.open_dataset(bench.Source(path=m.path))
    plan = bench.feed_of(m, dataset).plan([dataset])
    assert bench.decoded_per_used(plan) <= 1.05
    plan.horizon_samples = 16
    assert bench.decoded_per_used(plan) > 3


def test_cameras_of_several_sizes_need_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = bench.open_dataset(bench.Source(path=str(path)))
    key = dataset.camera_keys[0]
    dataset.cameras[key] = bench.replace(dataset.cameras[key], height=10)
    with pytest.raises(InputError, match="several sizes; make them equal with --size"):
        bench.feed_of(Measurement(path=str(path)), dataset)


def test_without_local_video_there_is_no_roofline(
    make_datasets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "LEAST_S", 0.2)
    monkeypatch.setattr(bench, "WARMUP_SAMPLES", 8)
    make_datasets.make(tmp_path / "set", make_datasets.Spec("rlds", episodes=3, length="9"))
    found = measure(Measurement(path=str(tmp_path / "set"), samples=16, rounds=1), print)
    assert found["samples_per_s"] > 0
    assert (found["roofline_samples_per_s"], found["of_roofline"]) == (None, None)
    json.dumps(found, allow_nan=False)


def test_a_file_that_cannot_be_decoded_does_not_stop_the_roofline(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LEAST_S", 0.2)
    dataset = bench.open_dataset(bench.Source(path=str(path)))
    monkeypatch.setattr(dataset.store, "local_path", lambda file: path / "meta/info.json")
    assert bench.roofline(dataset) == 0
