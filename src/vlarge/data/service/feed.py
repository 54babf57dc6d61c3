"""Everything that decides a run's stream, as plain data that can be handed to another process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.check import require_trainable
from vlarge.data.config import Source
from vlarge.data.frame_cache import FrameCache
from vlarge.data.index import Dataset, open_dataset
from vlarge.data.mixture import Mixture
from vlarge.data.order import Order
from vlarge.data.service.decoder import Apart, Here
from vlarge.data.service.node import NodeService
from vlarge.data.service.plan import Node, Part, Plan
from vlarge.data.transforms import Preparation
from vlarge.data.transforms.resize import PADDINGS

MAX_CLIP_FRAMES = 128
KEPT_FRACTION = 0.25  # of memory may hold datasets that fit into it whole
STEPS_AHEAD = 16  # beyond the window: more would only take time from the trainer at the start
HELD_STEPS = 2  # a rank still looks at one when it asks for the next
EDGE_STEPS = 2  # a window may begin and end within a batch
PLANNED_FRACTION = 0.8  # of what memory holds else: the rest is for batches that ranks still look at


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What a node's service needs. preparations: of each source, as JSON. image_shape: (height, width) of all images;
    padding: one of `transforms.resize.PADDINGS`, how they become squares.

    cache_dir: where frames are kept at their final size, at most cache_bytes for each source; "" for nowhere. A dataset
    that fits into a part of memory_bytes is kept there all the same, if `keep_small`.
    num_threads: that decode; 0 stands for one per core. budget_tokens: of a micro-batch, 0 for no bound;
    an image counts as image_tokens, each of the suffixes_per_prefix as draw_tokens, and once for each action step.
    micro_batches: a step has so many, or a multiple of it where the budget asks for more.
    """

    sources: tuple[Source, ...]
    preparations: tuple[dict[str, Any], ...]
    image_shape: tuple[int, int]
    seed: int
    batch_size: int
    weights: tuple[float, ...] = ()
    node: Node = field(default_factory=Node)
    start_step: int = 0
    clip_frames: int = 16
    window_samples: int = 4096
    num_threads: int = 0
    memory_bytes: int = 4 << 30
    budget_tokens: int = 0
    micro_batches: int = 1
    image_tokens: int = 0
    suffixes_per_prefix: int = 1
    draw_tokens: int = 0
    padding: str = PADDINGS[0]
    augment: bool = False
    keep_small: bool = True
    cache_dir: str = ""
    cache_bytes: int = 0
    index_dir: str = "~/.cache/vlarge/index"
    remote_cache_bytes: int = 32 << 30
    remote_deadline_s: float = 120.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Feed:
        """Inverse of `to_json`."""
        data: dict[str, Any] = json.loads(text)
        sources = tuple(Source(**_tuples(source)) for source in data.pop("sources"))
        return cls(**_tuples(data) | {"sources": sources, "node": Node(**data["node"])})

    def datasets(self) -> list[Dataset]:
        """The sources, opened."""
        return [
            open_dataset(
                source,
                self.index_dir,
                remote_cache_bytes=self.remote_cache_bytes,
                remote_deadline_s=self.remote_deadline_s,
            )
            for source in self.sources
        ]

    def open(self, datasets: Sequence[Dataset] = (), *, apart: bool = False) -> NodeService:
        """Start the service in this process. datasets: of the sources, where they are open already.

        apart: each thread decodes in a process of its own.
        """
        opened = datasets or self.datasets()
        plan = self.plan(opened)
        fitting = self._fitting_steps(plan.parts)
        needed = plan.window_steps() + HELD_STEPS  # with less, a clip could wait for ever
        if needed > fitting:
            raise self._too_little(plan.parts, needed)
        room = min(fitting, plan.window_steps() + STEPS_AHEAD)
        return NodeService(
            plan,
            self.start_step,
            image_shape=self.image_shape,
            num_threads=self.num_threads or len(os.sched_getaffinity(0)),
            max_batches=room * self.node.ranks_per_node,
            make_decoder=(
                partial(Apart, replace(self, preparations=()).to_json(), [dataset.revision for dataset in opened])
                if apart
                else partial(Here, opened, self.image_shape, self.padding)
            ),
        )

    def plan(self, datasets: Sequence[Dataset] = ()) -> Plan:
        """What the service would read; nothing is started. datasets: as for `open`."""
        opened = datasets or self.datasets()
        preparations = [Preparation.from_json(p) for p in self.preparations]
        parts = [self._part(d, p) for d, p in zip(opened, preparations, strict=True)]
        self._check_ranks()
        fitting = self._fitting_steps(parts)
        planned_steps = max(1, min(int(PLANNED_FRACTION * fitting), fitting - HELD_STEPS - EDGE_STEPS))
        return Plan(
            parts,
            Mixture(self._orders(parts), self.weights),
            self.batch_size,
            node=self.node,
            budget_tokens=self.budget_tokens,
            micro_batches=self.micro_batches,
            suffixes_per_prefix=self.suffixes_per_prefix,
            draw_tokens=self.draw_tokens,
            horizon_samples=planned_steps * self.batch_size,
        )

    def decides_order(self, datasets: Sequence[Dataset]) -> dict[str, Any]:
        """Everything that the sequence of samples depends on, by the name of its setting. datasets: of the sources."""
        horizons = {p["action_horizon"] for p in self.preparations}
        return {
            "run.seed": self.seed,
            "train.batch_size": self.batch_size,
            "data.clip_frames": self.clip_frames,
            "data.window_samples": self.window_samples,
            "weight": [*self.weights],
            "model.action_horizon": sorted(horizons),
            "dataset": [dataset.revision for dataset in datasets],
            "statistics of its states and actions": [_statistics(p) for p in self.preparations],
        }

    def _check_ranks(self) -> None:
        if self.batch_size < self.node.num_nodes * self.node.ranks_per_node:
            num_ranks = self.node.num_nodes * self.node.ranks_per_node
            raise InputError(f"train.batch_size = {self.batch_size} is less than the {num_ranks} processes; raise it")

    def _orders(self, parts: Sequence[Part]) -> list[Order]:
        weights = np.array(self.weights or [1.0] * len(parts))
        return [
            Order(part.spans_S3[:, 2], self.seed, part.clip_frames, ceil(self.window_samples * share))
            for part, share in zip(parts, weights / weights.sum(), strict=True)
        ]

    def _fitting_steps(self, parts: Sequence[Part]) -> int:
        return int((1 - KEPT_FRACTION) * self.memory_bytes) // self._step_bytes(parts)

    def _step_bytes(self, parts: Sequence[Part]) -> int:
        return self._sample_bytes(parts) * self.batch_size // self.node.num_nodes

    def _too_little(self, parts: Sequence[Part], needed_steps: int) -> InputError:
        needed = ceil(needed_steps * self._step_bytes(parts) / (1 - KEPT_FRACTION))
        return InputError(
            f"data.memory_bytes = {self.memory_bytes} is too little: {needed_steps} global batches of"
            f" {self.batch_size} samples are open at a time on each node; give {needed}"
        )

    def _sample_bytes(self, parts: Sequence[Part]) -> int:
        return max(1, max(part.num_images for part in parts) * self.image_shape[0] * self.image_shape[1] * 3)

    def _part(self, dataset: Dataset, preparation: Preparation) -> Part:
        require_trainable(dataset)
        check_cameras(dataset, preparation)
        clip_frames = aligned(self.clip_frames, dataset.gop_frames(preparation.cameras))
        spans_S3 = dataset.spans(preparation.action_horizon)
        return Part(dataset, preparation, spans_S3, clip_frames, self.image_tokens, self._cache(dataset), self.augment)

    def _cache(self, dataset: Dataset) -> FrameCache | None:
        height, width = self.image_shape
        if not self.cache_dir:
            whole_bytes = dataset.num_frames * len(dataset.camera_keys) * height * width * 3
            kept_bytes = int(KEPT_FRACTION * self.memory_bytes / len(self.sources))
            fits = self.keep_small and whole_bytes <= kept_bytes
            return FrameCache(None, self.image_shape, kept_bytes) if fits else None
        padded = "" if self.padding == PADDINGS[0] else f"-{self.padding}"
        folder = Path(self.cache_dir).expanduser() / f"{dataset.revision}-{height}x{width}{padded}"
        return FrameCache(folder, self.image_shape, self.cache_bytes)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def _statistics(preparation: dict[str, Any]) -> str:
    # To five digits: another machine may add up in another order.
    text = json.dumps([preparation["state_normalizer"], preparation["action_normalizer"]])
    rounded = json.loads(text, parse_float=lambda number: f"{float(number):.5g}")
    return hashlib.sha256(json.dumps(rounded).encode()).hexdigest()[:16]


def aligned(clip_frames: int, gop_frames: int) -> int:
    """The multiple of a group of pictures nearest to `clip_frames`, where that is not far off."""
    if gop_frames > MAX_CLIP_FRAMES:
        return clip_frames
    return max(1, round(clip_frames / gop_frames)) * gop_frames


def check_cameras(dataset: Dataset, preparation: Preparation) -> None:
    """Raise InputError for a camera that the preparation names and the dataset does not have."""
    for key in preparation.cameras:
        if key not in dataset.camera_keys:
            known = ", ".join(dataset.camera_keys) or "none"
            raise InputError(
                f"{dataset.root}: the model looks at camera {key!r}, the dataset has: {known}; set data.cameras"
            )
