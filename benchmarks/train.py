"""What a second process brings, and what the trainer takes beside the step itself.

    python benchmarks/train.py --data PATH

PATH: any dataset with small pictures; it is decoded once and then kept. One process, and two that are data-parallel
with twice the batch, by the real command, one thread each, in turns; keep the machine quiet. Takes about five minutes;
the result is written as JSON and Markdown to --out (beside this file).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROUNDS, STEPS, WARM_UP = 4, 80, 20
SECTIONS = ("data_wait_s", "forward_s", "backward_s", "communicate_s", "optimizer_s")
SIZES = {  # preset, batch of one process
    "a step of about 50 ms": ("tiny", 5),
    "a step of about a quarter of a second": ("tiny", 48),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    found = {
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU",
        "commit": commit.strip(),
        "sizes": {name: measure(arguments.data, *size) for name, size in SIZES.items()},
    }
    (arguments.out / "train.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "train.md").write_text(as_markdown(found))
    print((arguments.out / "train.md").read_text())


def measure(data: str, preset: str, batch: int) -> dict[str, Any]:
    """Seconds of a step by section, and samples/s: the median over each run's steps, for every round."""
    with tempfile.TemporaryDirectory() as cache:
        run(data, preset, 1, batch, cache)  # which fills it
        rounds = [{str(num): run(data, preset, num, num * batch, cache) for num in (1, 2)} for _ in range(ROUNDS)]
    return {"preset": preset, "batch": batch, "rounds": rounds}


def run(data: str, preset: str, num_processes: int, batch_size: int, cache: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
        settings = {
            "data.path": data, "data.workers": 1, "data.cache": "resized", "data.cache_dir": cache,
            "model.preset": preset, "run.dir": f"{folder}/run",
            "train.steps": STEPS, "train.batch_size": batch_size, "train.num_threads": 1, "train.save_every": 0,
            "train.dtype": "fp32", "track.tensorboard": "false",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, *(launch if num_processes > 1 else []), "-m", "vlarge", "train", *options]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        lines = [json.loads(line) for line in Path(folder, "run", "steps.jsonl").read_text().splitlines()]
    kept = lines[WARM_UP:]
    seconds = {name: statistics.median(line.get(name, 0.0) for line in kept) for name in SECTIONS}
    whole_s = statistics.median(line["step_s"] + line["other_s"] for line in kept)
    rest_s = statistics.median(map(rest_of, kept))
    return seconds | {"rest_s": rest_s, "whole_s": whole_s, "samples_per_s": batch_size / whole_s}


def as_markdown(found: dict[str, Any]) -> str:
    parts = [
        "# What a second process brings, and what the trainer takes",
        "",
        f"`python benchmarks/train.py --data PATH`, {found['hardware']}, one thread for each process. {ROUNDS} rounds"
        f" of {STEPS} steps in turns, the first {WARM_UP} not counted; times are medians over steps, of the best round."
        f" At commit {found['commit']}.",
        "",
    ]
    for name, size in found["sizes"].items():
        parts += _section(name, size)
    return "\n".join(parts)


def _section(name: str, size: dict[str, Any]) -> list[str]:
    one, two = (min((r[num] for r in size["rounds"]), key=lambda each: each["whole_s"]) for num in ("1", "2"))
    ratios = [r["2"]["samples_per_s"] / r["1"]["samples_per_s"] for r in size["rounds"]]
    named = {section: section.removesuffix("_s").replace("_", " ") for section in SECTIONS}
    rows = [f"| {text} | {1e3 * one[key]:.1f} | {1e3 * two[key]:.1f} |" for key, text in named.items()]
    best = two["samples_per_s"] / one["samples_per_s"]
    return [
        f"## {name[0].upper()}{name[1:]}: preset {size['preset']}, {size['batch']} samples on each process",
        "",
        f"Two processes do {best:.2f} times the samples of one (2 would be all; in the rounds"
        f" {', '.join(f'{ratio:.2f}' for ratio in ratios)}): {one['samples_per_s']:.0f} and"
        f" {two['samples_per_s']:.0f} samples/s. Beside forward, backward, optimizer and data the trainer of one"
        f" process takes {one['rest_s'] / one['whole_s']:.1%} of a step.",
        "",
        "| ms of a step | one process | two |",
        "| --- | --- | --- |",
        *rows,
        f"| trainer: the rest | {1e3 * one['rest_s']:.2f} | {1e3 * two['rest_s']:.2f} |",
        f"| whole | {1e3 * one['whole_s']:.1f} | {1e3 * two['whole_s']:.1f} |",
        "",
    ]


def rest_of(line: dict[str, float]) -> float:
    """Seconds of a step that no section has: packing up a record, writing it, agreeing on counts."""
    return line["step_s"] + line["other_s"] - sum(line.get(section, 0.0) for section in SECTIONS)


if __name__ == "__main__":
    main()
