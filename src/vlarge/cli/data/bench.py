"""`vlarge data bench`: how fast a dataset streams here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from vlarge.cli.data.opening import Keys
from vlarge.cli.show import print_json, print_table
from vlarge.contracts import InputError


@dataclass(frozen=True)
class Bench(Keys):
    """Measure how fast a dataset streams, beside what the machine could decode, and beside LeRobot's loader.

    Example: vlarge data bench my_dataset --against lerobot --size 224
    """

    path: tyro.conf.Positional[str]
    """A dataset folder, an object store's address, or hf://user/name."""
    against: tyro.conf.UseAppendAction[tuple[Literal["lerobot"], ...]] = ()
    """A peer to measure in turn."""
    size: int = 0
    """Resize pictures to this; 0 leaves them as they are."""
    batch: int = 16
    """Samples in a batch."""
    samples: int = 2000
    """Samples to time, in each round: so many, and for six seconds, at least."""
    rounds: int = 3
    """Rounds; medians are reported."""
    step_s: float = 0.0
    """How long the consumer works on each batch."""
    workers: int = 0
    """Threads that decode; 0: one for each core."""
    window_samples: int = 4096
    """Samples among which is shuffled; 0: all."""
    cache_dir: str = ""
    """Keep frames in this folder, as data.cache = "resized" does; measure the second time round."""
    json: bool = False
    """Print JSON."""


def bench(arguments: Bench) -> int:
    from vlarge.data.bench import Measurement, measure

    if arguments.batch < 1:
        raise InputError(f"batch is {arguments.batch}; give the number of samples in a batch")
    found = measure(
        Measurement(
            path=arguments.path,
            state_key=arguments.state_key,
            action_key=arguments.action_key,
            size=arguments.size,
            batch_size=arguments.batch,
            samples=arguments.samples,
            rounds=arguments.rounds,
            step_s=arguments.step_s,
            workers=arguments.workers,
            window_samples=arguments.window_samples,
            cache_dir=arguments.cache_dir,
            against=arguments.against,
        ),
        lambda line: print(line, file=sys.stderr),
    )
    if arguments.json:
        print_json(found)
        return 0
    rows = [
        ("stream", f"{found['samples_per_s']:.0f} samples/s"),
        ("decode roofline", _roofline(found)),
        ("frames decoded / used", f"{found['frames_decoded_per_used']:.3f}"),
        ("the same, full shuffle", f"{found['frames_decoded_per_used_full_shuffle']:.3f}"),
        ("consumer waits", f"{found['data_wait_fraction']:.1%} of the time"),
        ("first batch", f"{found['first_batch_s']:.1f} s"),
        ("service memory, at most", f"{found['service_memory_bytes'] / 2**20:.0f} MiB"),
    ]
    for peer, ratio in found["ratio"].items():
        rows.append(
            (peer, f"{found['peers'][peer]['samples_per_s']:.0f} samples/s; the stream is {ratio:.1f} times as fast")
        )
    print_table(f"{arguments.path} on {found['cores']} cores", ("", "median"), rows)
    return 0


def _roofline(found: dict[str, Any]) -> str:
    if found["of_roofline"] is None:
        return "there is no local video to decode"
    return f"{found['roofline_samples_per_s']:.0f} samples/s, of which {found['of_roofline']:.0%}"
