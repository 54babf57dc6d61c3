"""Every fault of the shared list: its kind, what is done about it, and that all that is left is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

GOOD = [0, 1, 2, 3, 4, 5]
Outcome = Callable[[Path], tuple[list[int] | str, set[tuple[str, str, int | None]]]]

# name -> usable episodes, and (kind, action, episodes) of the faults that must be named, no other.
EXPECTED: dict[str, tuple[list[int] | str, list[tuple[str, str, list[int | None]]]]] = {
    "truncated_mp4": ([0, 1, 2, 3], [("truncated_mp4", "quarantine", [4, 5])]),
    "moov_missing": ([0, 1, 2], [("moov_missing", "quarantine", [3, 4, 5])]),
    "missing_mp4": ([0, 1, 2], [("missing_mp4", "quarantine", [3, 4, 5])]),
    "empty_mp4": ([0, 1, 2], [("empty_mp4", "quarantine", [3, 4, 5])]),
    "short_video": ([0, 1, 2, 3, 4], [("short_video", "quarantine", [5])]),
    "wrong_from_timestamp": ([0, 2, 3, 4, 5], [("wrong_from_timestamp", "quarantine", [1])]),
    "to_timestamp_is_last_frame": (GOOD, []),
    "wrong_codec_in_info": (GOOD, []),
    "wrong_resolution": (GOOD, [("wrong_resolution", "report", [None])]),
    "videos_folder_renamed": ("refused", [("videos_folder_renamed", "refuse", [None])]),
    "phantom_camera": (GOOD, [("phantom_camera", "report", [None])]),
    "jittered_timestamps": (GOOD, [("jittered_timestamps", "report", [None])]),
    "missing_frame": ([0, 1, 3, 4, 5], [("missing_frame", "quarantine", [2])]),
    "missing_column": ([0, 1, 4, 5], [("missing_column", "quarantine", [2, 3])]),
    "missing_parquet": ([0, 1, 4, 5], [("missing_parquet", "quarantine", [2, 3])]),
    "truncated_parquet": ([0, 1, 4, 5], [("truncated_parquet", "quarantine", [2, 3])]),
    "nan_actions": (GOOD, [("nan_actions", "quarantine", [1, 2])]),
    "shape_mismatch": (GOOD, [("shape_mismatch", "report", [None])]),
    "converted_tables": (GOOD, []),
    "float64_columns": (GOOD, []),
    "tasks_unnamed_index": (GOOD, []),
    "stats_missing": (GOOD, [("stats_missing", "report", [None])]),
    "image_stats_missing": (GOOD, [("image_stats_missing", "report", [None])]),
    "zero_length_episode": (GOOD, [("zero_length_episode", "report", [6])]),
    "extra_episode": (GOOD, [("extra_episode", "quarantine", [6])]),
    "wrong_data_file_index": ([0, 1, 3, 4, 5], [("wrong_data_file_index", "quarantine", [2])]),
    "episodes_column_order": (GOOD, []),
    "splits_too_large": (GOOD, [("splits_too_large", "report", [None])]),
    "info_invalid_json": ("refused", [("info_invalid_json", "refuse", [None])]),
    "info_unknown_version": ("refused", [("info_unknown_version", "refuse", [None])]),
    "empty_dataset": ([], [("stats_missing", "report", [None])]),
    "v21_partial_download": ([1, 3, 4], [("partial_download", "quarantine", [0, 2, 5])]),
    "v21_bad_chunk_template": (GOOD, [("bad_chunk_template", "report", [None])]),
    "v21_short_video": ([0, 1, 2, 3, 5], [("short_video", "quarantine", [4])]),
    "v21_broken_jsonl_line": ("refused", [("broken_jsonl_line", "refuse", [None])]),
}


def test_every_listed_fault_is_expected_here(damage: ModuleType) -> None:
    assert set(EXPECTED) == {name for name, (base, _) in damage.FAULTS.items() if base != "rlds"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_costs_only_what_it_must(
    name: str, damage: ModuleType, good_copy: Callable[[str], Path], outcome: Outcome
) -> None:
    base, change = damage.FAULTS[name]
    root = good_copy(base)
    change(root)
    usable, faults = EXPECTED[name]
    assert outcome(root) == (usable, {(kind, action, e) for kind, action, numbers in faults for e in numbers})


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_the_undamaged_have_no_fault(version: str, good_copy: Callable[[str], Path], outcome: Outcome) -> None:
    assert outcome(good_copy(version)) == (GOOD, set())
