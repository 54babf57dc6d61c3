"""A point that is to reach the middle of a field, behind `contracts.Env`; and the same with one promise broken."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from vlarge.contracts import EnvSpec, EpisodeKey, Observation, Step
from vlarge.sim.spec import checked_action, episode_seed

SIZE, HZ, HORIZON, NEAR = 16, 10.0, 40, 0.1
CAMERA = "observation.images.top"

FAULTS = {
    "same start": ("start_counts", "reset_keeps"),
    "same in another process": ("start_of_process", "noise_of_process"),
    "same actions, same episode": ("noise", "looks_count"),
    "keys differ": ("no_init_id", "no_seed"),
    "as declared": ("no_camera", "float_image", "small_image", "long_state", "nan_state", "no_instruction"),
    "upright": ("upside_down", "mirrored", "no_mark"),
    "looking changes nothing": ("one_buffer", "flickers"),
    "ends at the horizon": ("no_end", "early_end", "goes_on"),
    "one reset an episode": ("resets_itself",),
    "keeps its rate": ("slow_clock", "clock_of_all", "skips_a_frame"),
    "actions are checked": ("takes_nan", "takes_any_size", "no_clip"),
    "success at reset is told": ("untold", "told_as_text"),
    "snapshots replay": ("shallow_snapshot", "snapshot_once"),
    "opens and closes": ("keeps_file", "keeps_thread", "closes_once"),
    "memory stays": ("keeps_memory",),
}
KEPT: list[Any] = []  # what broken ones do not let go


def let_go() -> None:
    for each in KEPT:
        if isinstance(each, int):
            os.close(each)
        if isinstance(each, threading.Event):
            each.set()
    KEPT.clear()


class ToyEnv:
    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self.spec = EnvSpec(
            task="toy/reach", instruction="go to the middle", cameras={CAMERA: (SIZE, SIZE)}, state_names=("x", "y"),
            action_names=("dx", "dy"), action_low=(-1.0, -1.0), action_high=(1.0, 1.0), action_convention="a tenth",
            control_hz=HZ, horizon=HORIZON, metric="success_once", render_quality="full", reset_mode="new",
            simulator="toy",
        )  # fmt: skip
        self._num_resets = self._num_looks = 0
        self._time_s = 0.0
        self._buffer = np.zeros((SIZE, SIZE, 3), np.uint8)
        self._where, self._velocity = np.zeros(2), np.zeros(2)
        self._is_open = True
        if fault == "keeps_file":
            KEPT.append(os.open(os.devnull, os.O_RDONLY))
        if fault == "keeps_thread":
            KEPT.append(threading.Event())
            threading.Thread(target=KEPT[-1].wait).start()

    def _is(self, fault: str) -> bool:
        return self._fault == fault

    def reset(self, key: EpisodeKey) -> None:
        self._num_resets += 1
        if self._is("no_init_id"):
            key = key._replace(init_id=0)
        if self._is("no_seed"):
            key = key._replace(seed=0)
        more = self._num_resets * self._is("start_counts") + os.getpid() * self._is("start_of_process")
        rng = np.random.default_rng([episode_seed(key), more])
        self._begun = rng.uniform(0.3, 0.9, 2)
        self._begin()
        if self._is("keeps_memory"):
            KEPT.append(np.ones(60_000))

    def _begin(self) -> None:
        self._where = self._begun.copy()
        if not self._is("reset_keeps"):
            self._velocity = np.zeros(2)
        self._num_steps = 0
        if not self._is("clock_of_all"):
            self._time_s = 0.0
        if not self._is("untold"):
            told: Any = self._is_near()
            self.success_at_reset = str(told) if self._is("told_as_text") else told

    def _is_near(self) -> bool:
        return bool(np.abs(self._where).max() < NEAR)

    def observe(self) -> Observation:
        self._num_looks += 1
        if self._is("looks_count"):
            self._where = self._where + 1e-3
        image = self._buffer if self._is("one_buffer") else np.zeros((SIZE, SIZE, 3), np.uint8)
        image[...] = (255 * np.clip(np.abs([*self._where, self._velocity[0]]), 0, 1)).astype(np.uint8)
        if self._is("flickers"):
            image[0, 0] = self._num_looks
        images: dict[str, Any] = {CAMERA: image}
        if self._is("no_camera"):
            images = {}
        if self._is("float_image"):
            images = {CAMERA: image / 255}
        if self._is("small_image"):
            images = {CAMERA: image[1:]}
        state = self._where.astype(np.float32)
        if self._is("long_state"):
            state = np.append(state, 0.0).astype(np.float32)
        if self._is("nan_state"):
            state[0] = np.nan
        return Observation(images, state, "" if self._is("no_instruction") else self.spec.instruction)

    def step(self, action_A: np.ndarray) -> Step:
        end = HORIZON - self._is("early_end")
        if self._num_steps >= HORIZON and not (self._is("goes_on") or self._is("no_end")):
            raise RuntimeError("reset it")
        action_A = self._checked(action_A)
        self._velocity = 0.5 * self._velocity + 0.1 * action_A
        self._where = self._where + self._velocity
        if self._is("noise"):
            self._where = self._where + np.random.normal(size=2)
        if self._is("noise_of_process"):
            self._where = self._where + os.getpid() * 1e-6
        self._num_steps += 1
        self._time_s += (0.5 if self._is("slow_clock") else 1.0) / HZ
        if self._is("skips_a_frame") and self._num_steps == 5:
            self._time_s += 1 / HZ
        success, truncated = self._is_near(), self._num_steps == end and not self._is("no_end")
        if success and self._is("resets_itself"):
            self._begin()
        return Step(0.0, success, truncated)

    def _checked(self, action_A: np.ndarray) -> np.ndarray:
        if self._is("takes_nan"):
            action_A = np.nan_to_num(action_A)
        if self._is("takes_any_size"):
            action_A = action_A[:2]
        if self._is("no_clip"):
            checked_action(action_A, self.spec)
            return action_A
        return checked_action(action_A, self.spec)

    def expert(self) -> np.ndarray:
        return np.clip(-5 * self._where, -1, 1).astype(np.float32)

    @property
    def time_s(self) -> float:
        return self._time_s

    def marked_image(self, camera: str) -> np.ndarray:
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        if not self._is("no_mark"):
            image[3, 8], image[8, 12] = (255, 0, 0), (0, 255, 0)
        if self._is("upside_down"):
            return image[::-1]
        return image[:, ::-1] if self._is("mirrored") else image

    def snapshot(self) -> Any:
        state = {name: self.__dict__[name] for name in ("_begun", "_where", "_velocity", "_num_steps", "_time_s")}
        return [self.__dict__ if self._is("shallow_snapshot") else state]

    def restore(self, snapshot: Any) -> None:
        if snapshot:
            self.__dict__.update(snapshot[0])
        if self._is("snapshot_once"):
            snapshot.clear()

    def close(self) -> None:
        if self._is("closes_once") and not self._is_open:
            raise RuntimeError("closed already")
        self._is_open = False
