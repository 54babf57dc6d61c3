"""Says, once each, when padding or unused memory is what limits a run, and the setting to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from vlarge.train.config import TrainConfig
from vlarge.train.track.tracker import Note

NUM_STEPS = 20  # watched before anything is said
MAX_PADDING = 0.05  # of the tokens computed
MIN_MEMORY = 0.5  # of the GPU's
MAX_WAIT = 0.2  # of a step: a run that waits for data longer than this is not limited by memory


class AdviceTracker:
    """memory_known: whether memory_fraction is a GPU's; a machine's memory is there for others too."""

    def __init__(self, config: TrainConfig, note: Note, *, memory_known: bool) -> None:
        self._config, self._note, self._memory_known = config, note, memory_known
        self._last: deque[Mapping[str, Any]] = deque(maxlen=NUM_STEPS)
        self._has_said: set[str] = set()

    def log(self, record: Mapping[str, Any]) -> None:
        self._last.append(record)
        if len(self._last) < NUM_STEPS:
            return
        padding = 1 - self._mean("real_token_fraction", 1.0)
        if padding > MAX_PADDING:
            self._say("padding", self._about_padding(padding))
        if not self._memory_known:
            return
        used = max(each.get("memory_fraction", 1.0) for each in self._last)
        waits = self._mean("data_wait_s", 0.0) > MAX_WAIT * self._mean("step_s", 0.0)
        if used < MIN_MEMORY and not waits:
            self._say("memory", self._about_memory(used))

    def close(self, *, failed: bool) -> None:
        pass

    def _mean(self, key: str, absent: float) -> float:
        return sum(each.get(key, absent) for each in self._last) / len(self._last)

    def _about_padding(self, padding: float) -> str:
        now = self._config.budget_tokens
        how = f"raise train.micro_batch_tokens above {now}" if now else "raise train.batch_size"
        return f"{padding:.0%} of the tokens that are computed are padding: {how}, so that less of each batch is filler"

    def _about_memory(self, used: float) -> str:
        c = self._config
        how = (
            f"raise train.micro_batch_tokens above {c.budget_tokens}, which changes no result"
            if c.budget_tokens
            else f"raise train.batch_size above {c.batch_size}"
        )
        more = f'; train.recompute is "{c.recompute}" and can be "none"' if c.recompute != "none" else ""
        return f"at most {used:.0%} of the GPU's memory is used: {how}{more}"

    def _say(self, about: str, text: str) -> None:
        if about not in self._has_said:
            self._has_said.add(about)
            self._note(text)
