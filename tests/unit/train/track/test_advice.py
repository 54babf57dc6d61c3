"""A run that padding or unused memory limits is told once which setting to change."""

from collections.abc import Callable
from typing import Any

from vlarge.train.config import TrainConfig
from vlarge.train.track.advice import NUM_STEPS, AdviceTracker

MakeRecord = Callable[..., dict[str, Any]]


def told(record: MakeRecord, config: TrainConfig, *, memory_known: bool = True, **numbers: float) -> list[str]:
    said: list[str] = []
    tracker = AdviceTracker(config, said.append, memory_known=memory_known)
    for step in range(1, 3 * NUM_STEPS):
        tracker.log(record(step, **numbers))
        assert step >= NUM_STEPS or not said  # first impressions are left alone
    return said


def test_a_run_that_is_well_used_hears_nothing(record: MakeRecord) -> None:
    assert told(record, TrainConfig(), real_token_fraction=0.97, memory_fraction=0.6) == []


def test_padding_is_told_with_the_setting_that_bounds_a_batch(record: MakeRecord) -> None:
    (text,) = told(record, TrainConfig(), real_token_fraction=0.75)
    assert text.startswith("25% of the tokens that are computed are padding: raise train.batch_size")
    (text,) = told(record, TrainConfig(micro_batch_tokens=4096), real_token_fraction=0.75)
    assert "raise train.micro_batch_tokens above 4096" in text


def test_unused_memory_is_told_where_it_is_a_gpus_and_the_run_does_not_wait_for_data(record: MakeRecord) -> None:
    (text,) = told(record, TrainConfig(batch_size=32), memory_fraction=0.3, data_wait_s=0.05)
    assert text == "at most 30% of the GPU's memory is used: raise train.batch_size above 32"
    (text,) = told(
        record, TrainConfig(micro_batch_tokens=512, recompute="layers"), memory_fraction=0.3, data_wait_s=0.0
    )  # fmt: skip
    assert "train.micro_batch_tokens above 512, which changes no result; train.recompute is" in text
    assert told(record, TrainConfig(), memory_fraction=0.3, data_wait_s=0.3) == []
    assert told(record, TrainConfig(), memory_fraction=0.3, data_wait_s=0.0, memory_known=False) == []
