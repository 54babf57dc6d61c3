"""Batches while they fill: every sample has its place before it is read, and a batch is ready with its last one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import assemble
from vlarge.data.service.plan import Place


@dataclass(frozen=True)
class Replacement:
    """A sample that could not be read, what stands in its place, and why."""

    bad: SampleId
    used: SampleId
    reason: str


@dataclass(frozen=True)
class Ready:
    """One rank's share of a global batch. Its images lie in an arena's slot, micro-batch after micro-batch.

    batches: the micro-batches, their images left out; num_images: of each.
    """

    step: int
    slot: int
    batches: list[PackedBatch]
    num_images: list[int]
    replacements: list[Replacement]


@dataclass(eq=False)
class OpenBatch:
    """One rank's share of a global batch that is being filled; its images go to an arena's slot.

    sizes: (samples, images) of each micro-batch. Not safe for threads.
    """

    step: int
    slot: int
    sizes: tuple[tuple[int, int], ...]
    replacements: list[Replacement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._samples: list[list[Sample | None]] = [[None] * samples for samples, _ in self.sizes]
        self._image_counts = [[0] * samples for samples, _ in self.sizes]
        self._first_image = np.cumsum([0, *(images for _, images in self.sizes)]).tolist()
        self._missing = sum(samples for samples, _ in self.sizes)

    def image_number(self, place: Place, camera: int) -> int:
        """Which of the images this camera's of the sample at `place` is."""
        first: int = self._first_image[place.micro]
        return first + place.image_row + camera

    def put(self, place: Place, sample: Sample, num_images: int) -> None:
        """The sample's numbers; its images have been written."""
        self._samples[place.micro][place.row] = sample
        self._image_counts[place.micro][place.row] = num_images
        self._missing -= 1

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    def ready(self) -> Ready:
        none = np.zeros((0, 0, 0, 3), np.uint8)
        batches = [
            assemble([s for s in samples if s is not None], none, counts)
            for samples, counts in zip(self._samples, self._image_counts, strict=True)
        ]
        replacements = sorted(self.replacements, key=lambda r: r.bad)
        return Ready(self.step, self.slot, batches, [images for _, images in self.sizes], replacements)
