"""A dataset's statistics: by episode, by task and of all, the same for any number of threads, and kept on disk."""

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data import stats, stats_file
from vlarge.data.config import Source
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.stats import FeatureStats, Survey, survey


class FakeDataset:
    """Episodes in memory, two to a file. delay_s: what reading one takes."""

    state_dim, action_dim = 3, 2

    def __init__(self, tables: list[SimpleNamespace], delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self.tables = tables
        self.delay_s = delay_s
        self.reading: list[str] = []
        self.most_at_once = 0
        self.lock = threading.Lock()
        self.episodes = [
            SimpleNamespace(index=10 + i, length=len(t.tasks), table_file=f"file{i // 2}") for i, t in enumerate(tables)
        ]
        self.tasks = sorted({task for table in tables for task in table.tasks})

    def read_table(self, episode: SimpleNamespace) -> SimpleNamespace:
        with self.lock:
            assert episode.table_file not in self.reading
            self.reading.append(episode.table_file)
            self.most_at_once = max(self.most_at_once, len(self.reading))
        time.sleep(self.delay_s())
        with self.lock:
            self.reading.remove(episode.table_file)
        return self.tables[episode.index - 10]


def table(length: int, *tasks: str, scale: float = 1.0) -> SimpleNamespace:
    """Tasks follow one another in equal shares."""
    rng = np.random.default_rng(length)
    return SimpleNamespace(
        state_TA=(rng.normal(size=(length, 3)) * scale).astype(np.float32),
        action_TA=rng.normal(size=(length, 2)).astype(np.float32),
        tasks=[tasks[i * len(tasks) // length] for i in range(length)],
    )


def tables() -> list[SimpleNamespace]:
    return [table(n, "push", scale=n) for n in (5, 1, 40, 3)] + [
        table(30, "pull", "push"),
        table(9, "pull"),
        table(2, "a"),
    ]


def as_json(found: Survey) -> str:
    whole = {key: accumulator.result().to_json() for key, accumulator in found.whole.items()}
    groups = [
        {str(name): {key: s.to_json() for key, s in features.items()} for name, features in group.items()}
        for group in (found.by_episode, found.by_task)
    ]
    return json.dumps([whole, *groups])


def check(found: FeatureStats, rows: np.ndarray) -> None:
    rows = rows.astype(np.float64)
    assert found.count == len(rows)
    np.testing.assert_array_equal(found.min, rows.min(0))
    np.testing.assert_array_equal(found.max, rows.max(0))
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-9)
    np.testing.assert_array_equal(found.q01, np.quantile(rows, 0.01, axis=0))
    np.testing.assert_array_equal(found.q99, np.quantile(rows, 0.99, axis=0))


def test_whole_episodes_and_tasks_in_one_pass() -> None:
    dataset: Any = FakeDataset(tables())
    found = survey(dataset, by_episode=True, by_task=True)
    check(found.whole[STATE].result(), np.concatenate([t.state_TA for t in dataset.tables]))
    check(found.whole[ACTION].result(), np.concatenate([t.action_TA for t in dataset.tables]))
    assert list(found.by_episode) == list(range(10, 17))
    for episode, t in zip(dataset.episodes, dataset.tables, strict=True):
        check(found.by_episode[episode.index][STATE], t.state_TA)
    assert list(found.by_task) == ["a", "pull", "push"]
    for task, features in found.by_task.items():
        rows = [t.action_TA[[name == task for name in t.tasks]] for t in dataset.tables]
        check(features[ACTION], np.concatenate(rows))


def test_each_view_alone() -> None:
    dataset: Any = FakeDataset(tables())
    assert stats.dataset_stats(dataset)[STATE].count == 90
    assert {n: s[STATE].count for n, s in stats.episode_stats(dataset).items()}[12] == 40
    assert {t: s[ACTION].count for t, s in stats.task_stats(dataset).items()} == {"a": 2, "pull": 24, "push": 64}


def test_threads_and_the_order_in_which_files_finish_change_no_bit() -> None:
    parts = tables() * 3
    one = as_json(survey(FakeDataset(parts), by_episode=True, by_task=True, num_threads=1))  # type: ignore[arg-type]
    delays = random.Random(0)
    for num_threads in (2, 3, 8):
        dataset: Any = FakeDataset(parts, lambda: delays.random() * 0.01)
        assert as_json(survey(dataset, by_episode=True, by_task=True, num_threads=num_threads)) == one
        assert 1 < dataset.most_at_once <= num_threads


def test_a_row_of_numbers_that_are_not_finite_reaches_nothing() -> None:
    parts = tables()
    parts[2].action_TA[6, 1] = np.nan
    parts[2].state_TA[8, 0] = -np.inf
    parts[3].state_TA[:] = np.nan
    dataset: Any = FakeDataset(parts)
    found = survey(dataset, by_episode=True, by_task=True)
    assert found.whole[STATE].count == found.whole[ACTION].count == 90 - 2 - 3
    check(found.by_episode[12][STATE], np.delete(parts[2].state_TA, [6, 8], axis=0))
    check(found.by_episode[12][ACTION], np.delete(parts[2].action_TA, [6, 8], axis=0))
    assert 13 not in found.by_episode
    assert found.by_task["push"][STATE].count == 64 - 2 - 3


@pytest.mark.parametrize("episodes", [0, 1])
def test_no_finite_row_is_an_input_error(episodes: int) -> None:
    parts = [table(4, "push", scale=np.inf)] * episodes
    with pytest.raises(InputError, match="no episode has a row of finite numbers"):
        stats.dataset_stats(FakeDataset(parts))  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_ends_it_with_the_first_error_and_no_thread() -> None:
    dataset: Any = FakeDataset(tables() * 5)
    read = dataset.read_table

    def fail(episode: SimpleNamespace) -> SimpleNamespace:
        if episode.index in (15, 20):
            time.sleep(0.05 if episode.index == 15 else 0)
            raise InputError(f"episode {episode.index} is broken")
        return read(episode)  # type: ignore[no-any-return]

    dataset.read_table = fail
    with pytest.raises(InputError, match="episode 15 is broken"):
        survey(dataset)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stats")]


@pytest.mark.parametrize(
    ("num_frames", "num_tasks", "bins"), [(10**5, 10**4, 2**17), (10**8, 10, 2**16), (10**8, 10**5, 2**10)]
)
def test_tasks_share_a_budget(num_frames: int, num_tasks: int, bins: int) -> None:
    dataset: Any = SimpleNamespace(
        state_dim=28, action_dim=28, tasks=range(num_tasks), episodes=[SimpleNamespace(length=num_frames)]
    )
    assert stats._max_task_bins(dataset) == bins


def test_task_sketches_are_coarser_than_those_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "TASKS_BYTES", 1)
    monkeypatch.setattr(stats, "MIN_TASK_BINS", 8)
    dataset: Any = FakeDataset([table(200, "push")])
    found = survey(dataset, by_task=True)
    assert abs(found.by_task["push"][STATE].q99 - found.whole[STATE].result().q99).max() < 1
    assert found.by_task["push"][STATE].q99.tolist() != found.whole[STATE].result().q99.tolist()


# ---- on real files, kept on disk


@pytest.fixture(scope="module")
def made(make_datasets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("datasets") / "made"
    spec = make_datasets.Spec("v3.0", episodes=5, length="4:8", cameras="top", codec="h264", data_episodes=2)
    make_datasets.make(root, spec)
    return root


def never(episode: Any) -> Any:
    raise AssertionError(f"episode {episode.index} is read")


def opened(root: Path, *, may_read: bool = True, **source: Any) -> Dataset:
    dataset = open_dataset(Source(path=str(root), **source))
    if not may_read:
        dataset.read_table = never  # type: ignore[method-assign]
    return dataset


def plain(found: dict[str, FeatureStats]) -> dict[str, Any]:
    return {key: feature.to_json() for key, feature in found.items()}


def test_of_a_dataset_on_disk(made: Path, make_datasets: ModuleType) -> None:
    dataset = opened(made)
    frames = [(e.index, np.arange(e.length)) for e in dataset.episodes]
    found = survey(dataset, by_task=True)
    check(found.whole[STATE].result(), np.concatenate([make_datasets.state_of(e, f, 8) for e, f in frames]))
    check(found.whole[ACTION].result(), np.concatenate([make_datasets.action_of(e, f, 7) for e, f in frames]))
    assert list(found.by_task) == dataset.tasks
    assert sum(features[STATE].count for features in found.by_task.values()) == dataset.num_frames


def test_kept_statistics_are_used_again(made: Path, tmp_path: Path) -> None:
    first = stats.dataset_stats(opened(made), str(tmp_path / "new/index"))
    again = stats.dataset_stats(opened(made, may_read=False), str(tmp_path / "new/index"))
    assert plain(again) == plain(first)
    assert [path.suffix for path in (tmp_path / "new/index").iterdir()] == [".json"]


def test_other_features_and_episodes_are_other_statistics(made: Path, tmp_path: Path) -> None:
    stats.dataset_stats(opened(made), str(tmp_path))
    for source in ({"state_key": "action"}, {"exclude_episodes": (0,)}):
        dataset = opened(made, **source)
        assert plain(stats.dataset_stats(dataset, str(tmp_path))) == plain(stats.dataset_stats(dataset))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"count": 31', '"count": 30'),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: json.dumps({**json.loads(text), "stats": {}}),
        lambda text: "\0\xff" + text,
    ],
)
def test_kept_statistics_in_doubt_are_computed_again(made: Path, tmp_path: Path, damage: Callable[[str], str]) -> None:
    dataset = opened(made)
    true = plain(stats.dataset_stats(dataset, str(tmp_path)))
    path = stats_file.path_of(dataset, str(tmp_path))
    text = path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    assert stats_file.load(path, dataset) is None
    assert plain(stats.dataset_stats(dataset, str(tmp_path))) == true
    assert path.read_text() == text


def test_another_dataset_s_file_is_not_taken(made: Path, tmp_path: Path) -> None:
    whole, part = opened(made), opened(made, exclude_episodes=(0,))
    stats.dataset_stats(part, str(tmp_path))
    stats_file.path_of(part, str(tmp_path)).rename(stats_file.path_of(whole, str(tmp_path)))
    assert stats_file.load(stats_file.path_of(whole, str(tmp_path)), whole) is None


def test_a_folder_that_cannot_be_written_is_no_fault(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert stats.dataset_stats(opened(made), str(tmp_path / "file/index"))[STATE].count > 0
    (tmp_path / "index").mkdir()
    dataset = opened(made)
    stats_file.path_of(dataset, str(tmp_path / "index")).mkdir()  # what cannot be replaced
    assert stats.dataset_stats(dataset, str(tmp_path / "index"))[STATE].count > 0
    assert len(list((tmp_path / "index").iterdir())) == 1
