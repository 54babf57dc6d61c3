"""train.micro_batch_tokens = "auto": the largest micro-batch that memory holds, from measured peaks.

What a step needs grows with the tokens of a micro-batch along a line once activations outweigh all else. So
micro-batches are doubled for as long as twice the peak is sure to fit, and the line through the last ones says the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch

from vlarge.contracts import InputError, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.train import hardware
from vlarge.train.dry_run.memory import Memory
from vlarge.train.engines import TrainingEngine
from vlarge.train.health.balance import gathered
from vlarge.train.parallel.mesh import Mesh

STRAIGHT = 0.05  # so much may two slopes differ
SPARE = 0.1  # of memory, for what other batches need more, and for the allocator's gaps
HOW = "set train.recompute, or divide the model by parallel.dp_shard, tp or pp"


class Peak(NamedTuple):
    """Bytes in use with micro-batches of so many tokens, beside what is held between steps, where they are most."""

    num_tokens: int
    num_bytes: float


@dataclass(frozen=True)
class Trial:
    """What is tried. sample: as long as any; sample_tokens: its length. most_samples: of a share of a global batch."""

    engine: TrainingEngine
    mesh: Mesh
    device: torch.device
    sample: Sample
    sample_tokens: int
    most_samples: int

    def peak(self, num_samples: int) -> Peak:
        """Of micro-batches of so many samples."""
        own = _peak_bytes(self.device, lambda: self._run(num_samples))
        return Peak(num_samples * self.sample_tokens, float(gathered(self.mesh.world, [own]).max()))

    def room_bytes(self) -> float:
        """That every process still has."""
        world = self.mesh.world
        return float(gathered(world, [hardware.room_bytes(self.device, world.local_size)]).min())

    def clear(self) -> None:
        """Leave nothing of what was tried."""
        for network in self.engine.networks:
            network.zero_grad(set_to_none=True)
        for mixture in self.engine.mixtures:
            mixture.forget()

    def _run(self, num_samples: int) -> None:
        samples = [replace(self.sample, id=SampleId(0, 0, i)) for i in range(num_samples)]
        num_values, num_steps = num_samples * self.sample.actions_SA.size, num_samples * len(self.sample.actions_SA)
        batches = [pack(samples)] * self.mesh.degrees.num_micro
        self.engine.add_gradients(batches, 0, num_values, num_steps)


def largest_micro_batch(trial: Trial) -> int:
    """Tokens of the largest micro-batch, no more than a share has; the same on every process, which all call this.

    Raises InputError where not even one sample fits.
    """
    trial.engine.state()  # of the optimizer too, which it makes with the first update
    try:
        trial.peak(1)  # from now on there are gradients, as there are in all micro-batches but the first
        return _largest(trial, (1 - SPARE) * trial.room_bytes())
    except torch.OutOfMemoryError:
        raise InputError(f"a sample of {trial.sample_tokens} tokens does not fit: {HOW}") from None
    finally:
        trial.clear()


def _largest(trial: Trial, room_bytes: float) -> int:
    peaks = [trial.peak(1)]
    if peaks[0].num_bytes > room_bytes:
        needs, room = (f"{number / 1e9:.3g} GB" for number in (peaks[0].num_bytes, room_bytes))
        raise InputError(f"a sample of {trial.sample_tokens} tokens takes {needs}, and there are {room} for it: {HOW}")
    num_samples = 2
    while num_samples <= trial.most_samples and 2 * peaks[-1].num_bytes <= room_bytes:  # twice as much will fit
        peaks.append(trial.peak(num_samples))
        num_samples *= 2
    return int(min(max(fitting(peaks, room_bytes), trial.sample_tokens), trial.most_samples * trial.sample_tokens))


def fitting(peaks: Sequence[Peak], room_bytes: float) -> float:
    """Tokens with which a micro-batch takes `room_bytes`: on the line through the last two peaks where the one before
    is on it too, else on the steeper line from nothing to the last.
    """
    last = peaks[-1]
    slopes = [(b.num_bytes - a.num_bytes) / (b.num_tokens - a.num_tokens) for a, b in pairwise(peaks)][-2:]
    straight = len(slopes) == 2 and slopes[1] > 0 and abs(slopes[0] - slopes[1]) <= STRAIGHT * slopes[1]
    slope = slopes[1] if straight else last.num_bytes / last.num_tokens
    return last.num_tokens + (room_bytes - last.num_bytes) / slope


def _peak_bytes(device: torch.device, run: Callable[[], None]) -> float:
    if device.type != "cuda":
        with Memory() as memory:
            run()
        return float(sum(memory.peak([])))
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    run()
    return float(torch.cuda.max_memory_allocated(device) - held)
