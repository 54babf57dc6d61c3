"""π0.5 packed: beside LeRobot's own, and by how much of a batch would be padding. On a CPU, in fp32.

    python benchmarks/models.py

Takes about fifteen minutes; keep the machine quiet. Needs LeRobot 0.6.1. Writes its result as JSON and Markdown to
--out (beside this file).
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models.flow import PI0_FLOW, keyed_draws
from vlarge.models.language import DecoderLayer
from vlarge.models.pi0.config import PRESETS, Pi0Config
from vlarge.models.pi0.model import Pi0, language_config

HERE = Path(__file__).parent
ROUNDS = 4
# As published for π0.5: three camera slots of which two are used, 200 slots for text.
MID = replace(PRESETS["mid"], vocab_size=2048)
CAMERAS, SLOTS, ACTION_DIM = 3, 200, 7
TEXT = (36, 41, 38, 44, 40, 35, 43, 39)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--contestant", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    if arguments.contestant:
        serve(CONTESTANTS[arguments.contestant]())
        return
    path = arguments.out / "models.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    found["hardware"] = f"{platform.machine()}, {os.cpu_count()} cores, no GPU"
    for name in arguments.only:
        found[name] = {"commit": commit.strip(), **PARTS[name]()}
        path.write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "models.md").write_text(as_markdown(found))
    print((arguments.out / "models.md").read_text())


# --- the contestants: each a process of its own, so that peaks of memory are its own ---


def ours() -> Callable[[], None]:
    model, batch = mid_model(), mid_batch()
    return lambda: step(model, batch)


def ours_with_dead_work() -> Callable[[], None]:
    """All of the last prefix layer, whose output nobody reads."""
    model, batch = mid_model(), mid_batch()
    model.prefix_layers[-1] = DecoderLayer(language_config(MID, MID.width, MID.mlp))
    return lambda: step(model, batch)


def lerobot() -> Callable[[], None]:
    return _lerobot(cameras=CAMERAS, slots=SLOTS)


def lerobot_cut() -> Callable[[], None]:
    """The same code; the batch cut by hand to the cameras that are there and to its longest text."""
    return _lerobot(cameras=2, slots=max(TEXT))


def _lerobot(cameras: int, slots: int) -> Callable[[], None]:
    from peers import lerobot_pi05, padded_inputs

    batch, ours = mid_batch(), mid_model()
    model = lerobot_pi05(MID, ours.state_dict())
    inputs = padded_inputs(batch, MID, cameras=cameras, slots=slots)
    actions, noise, time_B = (x.unflatten(0, (batch.num_samples, -1)) for x in draws(batch))
    with torch.no_grad():
        reference = velocity(ours, batch).unflatten(0, (batch.num_samples, -1))
        theirs = noise - actions
        losses = model.forward(*inputs, actions, noise, time_B[:, 0])
        error = ((reference - theirs).square() - losses).abs().max().item()
    assert error < 1e-3, f"the two models differ by {error}"
    del ours, reference

    def run() -> None:
        model.zero_grad(set_to_none=True)
        model.forward(*inputs, actions, noise, time_B[:, 0])[..., :ACTION_DIM].mean().backward()

    return run


CONTESTANTS = {
    "lerobot": lerobot,
    "lerobot, cut by hand": lerobot_cut,
    "vlarge with dead work": ours_with_dead_work,
    "vlarge": ours,
}


def mid_model() -> Pi0:
    torch.manual_seed(0)
    model = Pi0(MID)
    with torch.no_grad():  # conditions start at zero: open them
        for name, parameter in model.named_parameters():
            if "dense" in name:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def mid_batch() -> PackedBatch:
    return pack([sample(i, 2, text, MID) for i, text in enumerate(TEXT)])


def sample(number: int, cameras: int, text: int, sizes: Pi0Config) -> Sample:
    rng = np.random.default_rng(number)
    shape = (sizes.image_size, sizes.image_size, 3)
    return Sample(
        id=SampleId(0, number, 0),
        images={str(k): rng.integers(0, 256, shape).astype(np.uint8) for k in range(cameras)},
        prompt_ids=rng.integers(0, sizes.vocab_size, text),
        state_A=np.zeros(8, np.float32),
        actions_SA=rng.standard_normal((sizes.action_horizon, ACTION_DIM)).astype(np.float32),
    )


def draws(batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Actions and noise [S, max_action_dim], and the flow time of each action step [S]."""
    times, noise = keyed_draws(0, batch.sample_ids_B3, 0, batch.num_actions_B, MID.max_action_dim)
    actions = torch.nn.functional.pad(torch.from_numpy(batch.actions_SA), (0, MID.max_action_dim - ACTION_DIM))
    return (
        actions,
        torch.from_numpy(noise),
        torch.from_numpy(times).repeat_interleave(torch.from_numpy(batch.num_actions_B)),
    )


def velocity(model: Pi0, batch: PackedBatch) -> torch.Tensor:
    actions, noise, time_S = draws(batch)
    noised, _ = PI0_FLOW.interpolate(actions, noise, time_S)
    return model(batch, noised, time_S[:: MID.action_horizon])


def step(model: Pi0, batch: PackedBatch) -> None:
    """Forward and backward pass."""
    model.zero_grad(set_to_none=True)
    actions, noise, _ = draws(batch)
    (velocity(model, batch) - (noise - actions))[:, :ACTION_DIM].square().mean().backward()


def serve(run: Callable[[], None]) -> None:
    """Run a step for each line on stdin; answer with its seconds and the peak of memory so far."""
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"step_s": seconds, "peak_bytes": peak}), flush=True)


@contextmanager
def contestant(name: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--contestant", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{name} did not start")
        yield process
    finally:
        process.kill()
        process.wait()


def against_lerobot() -> dict[str, Any]:
    """Forward and backward pass at mid size: one process each, stepped in turns, so that all see the same minutes."""
    from contextlib import ExitStack

    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    with ExitStack() as stack:
        running = {name: stack.enter_context(contestant(name)) for name in CONTESTANTS}
        for _ in range(ROUNDS):
            for name, process in running.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                found[name].append(json.loads(process.stdout.readline()))
    best = {name: min(each["step_s"] for each in steps) for name, steps in found.items()}
    peak = {name: max(each["peak_bytes"] for each in steps) for name, steps in found.items()}
    return {
        "steps": found,
        "step_s": best,
        "peak_bytes": peak,
        "speedup": best["lerobot"] / best["vlarge"],
        "speedup_in_each_round": [
            a["step_s"] / b["step_s"] for a, b in zip(found["lerobot"], found["vlarge"], strict=True)
        ],
        "shares": shares(best),
        "memory": peak["vlarge"] / peak["lerobot"],
    }


def shares(step_s: dict[str, float]) -> dict[str, float]:
    """Of the logarithm of the whole speed-up: factors multiply."""
    whole = np.log(step_s["lerobot"] / step_s["vlarge"])
    return {
        "removed padding": float(np.log(step_s["lerobot"] / step_s["lerobot, cut by hand"]) / whole),
        "dead work": float(np.log(step_s["vlarge with dead work"] / step_s["vlarge"]) / whole),
        "the rest": float(np.log(step_s["lerobot, cut by hand"] / step_s["vlarge with dead work"]) / whole),
    }


# --- packed beside padded, both ours ---

SMALL = replace(MID, depth=3, vision_depth=3, image_size=112)
PATCHES = (SMALL.image_size // SMALL.patch) ** 2
BATCH = 16
PLACES = CAMERAS * PATCHES + SLOTS  # tokens of a padded prefix
RATES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9)


def by_padding() -> dict[str, Any]:
    """Batches of which so much would be padding, all samples alike."""
    rows = []
    for rate in RATES:
        real = round(PLACES * (1 - rate))
        cameras = min(CAMERAS, real // PATCHES)
        rows.append({"padding": rate, **packed_and_padded([(cameras, real - cameras * PATCHES)] * BATCH)})
    return {"rows": rows}


def by_distribution() -> dict[str, Any]:
    return {"rows": [{"distribution": name, **packed_and_padded(draw())} for name, draw in DISTRIBUTIONS.items()]}


def packed_and_padded(lengths: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Best step times, in turns. The padded batch has every camera and text slot; ours runs it as if it were real."""
    slots = max(CAMERAS, *(cameras for cameras, _ in lengths))
    torch.manual_seed(0)
    model = Pi0(SMALL)
    batches = {
        "packed": pack([sample(i, cameras, text, SMALL) for i, (cameras, text) in enumerate(lengths)]),
        "padded": pack([sample(i, slots, SLOTS, SMALL) for i in range(len(lengths))]),
    }
    step_s: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS):
        for name, batch in batches.items():
            began = time.perf_counter()
            step(model, batch)
            step_s[name].append(time.perf_counter() - began)
    best = {name: min(times[1:]) for name, times in step_s.items()}
    horizon = SMALL.action_horizon
    real = sum(cameras * PATCHES + text + horizon for cameras, text in lengths)
    padded = len(lengths) * (slots * PATCHES + SLOTS + horizon)
    return {
        "packed_s": best["packed"],
        "padded_s": best["padded"],
        "speedup": best["padded"] / best["packed"],
        "padded_over_real_tokens": padded / real,
        "of_it": best["padded"] / best["packed"] / (padded / real),
    }


def alike() -> list[tuple[int, int]]:
    return [(2, 40)] * BATCH


def uniform() -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    return [(int(rng.integers(0, CAMERAS + 1)), int(rng.integers(1, SLOTS + 1))) for _ in range(BATCH)]


def long_tail() -> list[tuple[int, int]]:
    """Lognormal text around 40 tokens, few near the limit; two cameras or three."""
    rng = np.random.default_rng(1)
    text = np.clip(np.exp(rng.normal(np.log(40), 0.7, BATCH)), 1, SLOTS).astype(int)
    return [(2 + int(rng.random() < 0.3), int(each)) for each in text]


def two_robots() -> list[tuple[int, int]]:
    """Half of the samples from a robot of one camera and short commands, half of three and long ones."""
    return [(1, 25), (3, 180)] * (BATCH // 2)


def real() -> list[tuple[int, int]]:
    """Samples of three public sets, each as often as the others: Bridge, a humanoid and one at a kitchen counter."""
    rng = np.random.default_rng(2)
    sets = [PUBLIC[int(k)] for k in rng.integers(0, len(PUBLIC), BATCH)]
    return [own[int(rng.integers(len(own)))] for own in sets]


# (cameras, prompt tokens) of their tasks, π0.5's prompt by the byte tokenizer: one token for each number of the state.
PUBLIC = (
    ((4, 30), (4, 56), (4, 39), (4, 44)),
    ((1, 69),),
    ((1, 112), (1, 104), (1, 104), (1, 104), (1, 107)),
)
PUBLISHED = 1.88  # times as fast by packing: arXiv 2603.11101
DISTRIBUTIONS = {
    "alike": alike,
    "uniform": uniform,
    "long tail": long_tail,
    "two robots": two_robots,
    "real prompts and cameras": real,
}
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "against_lerobot": against_lerobot,
    "by_padding": by_padding,
    "by_distribution": by_distribution,
}


def as_markdown(found: dict[str, Any]) -> str:
    parts = [
        f"# π0.5 packed\n\n`python benchmarks/models.py`, {found['hardware']}, fp32, 2 threads, forward and backward."
    ]
    if "against_lerobot" in found:
        parts.append(_against(found["against_lerobot"]))
    if "by_padding" in found:
        parts.append(_rows("By padding, all samples alike", "padding", found["by_padding"], "{:.0%}"))
    if "by_distribution" in found:
        parts.append(_rows("By distribution of lengths", "distribution", found["by_distribution"], "{}"))
        near = min(found["by_distribution"]["rows"], key=lambda row: abs(row["speedup"] - PUBLISHED))
        parts.append(
            f"The {PUBLISHED} published for packing is nearest to the {near['speedup']:.2f} of {near['distribution']!r}"
            f" here, whose padded tokens are {near['padded_over_real_tokens']:.2f} times its real ones."
        )
    return "\n\n".join(parts) + "\n"


def _against(part: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{seconds:.2f}",
            f"{part['step_s']['lerobot'] / seconds:.2f}",
            f"{part['peak_bytes'][name] / 2**30:.2f}",
        ]
        for name, seconds in part["step_s"].items()
    ]
    each = ", ".join(f"{ratio:.2f}" for ratio in part["speedup_in_each_round"])
    shares = ", ".join(f"{name} {share:.0%}" for name, share in part["shares"].items())
    return "\n\n".join(
        [
            "## Beside LeRobot 0.6.1's own: 39 M parameters, batch 8, 2 of 3 cameras, about 40 of 200 text tokens",
            _table(["", "best s a step", "times lerobot", "peak GiB"], rows),
            f"Processes stepped in turns; in each round vlarge was {each} times as fast. Of the speed-up (its"
            f" logarithm): {shares}. Memory: {part['memory']:.0%} of LeRobot's, whole processes. At commit"
            f" {part['commit']}.",
        ]
    )


def _rows(title: str, column: str, part: dict[str, Any], form: str) -> str:
    rows = [
        [form.format(row[column]), f"{row['packed_s']:.2f}", f"{row['padded_s']:.2f}", f"{row['speedup']:.2f}",
         f"{row['padded_over_real_tokens']:.2f}", f"{row['of_it']:.2f}"]
        for row in part["rows"]
    ]  # fmt: skip
    head = [column, "packed s", "padded s", "speed-up", "padded / real tokens", "of it"]
    return f"## {title}\n\n{_table(head, rows)}\n\nAt commit {part['commit']}."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
