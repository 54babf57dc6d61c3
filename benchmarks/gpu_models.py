"""π0.5 and GR00T N1.5 at full size with random weights on one GPU: packed, padded, compiled, and beside LeRobot's.

    PYTHONPATH=src python benchmarks/gpu_models.py --budget-s 420

Needs torch, numpy and safetensors; LeRobot's π0.5 stands beside ours where it is installed. Configurations come in
order of importance, each result is written at once (`gpu_models.json` in --out), and none is begun when the budget is
nearly over. `--device cpu --size tiny` tries the script itself in a minute or two, without meaning.

Every configuration: the same batch, bf16 products over fp32 weights, forward and backward pass, layers recomputed or
not as its name says. Of a batch's places two of three cameras and 66 of 200 text tokens are real. Utilisation counts
the operations that real tokens need, three times those of a forward pass, whatever is computed beside them.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models.attention import BACKENDS, Segments, attend
from vlarge.models.compute import compile_regions, recompute_layers
from vlarge.models.config import ModelConfig
from vlarge.models.flow import keyed_draws
from vlarge.models.registry import find_family

HERE = Path(__file__).parent
PRESETS = {"full": {"pi05": "base", "gr00t": "n1.5-3b"}, "tiny": {"pi05": "tiny", "gr00t": "tiny"}}
CAMERAS, SLOTS, ACTION_DIM, STATE_DIM = 3, 200, 7, 8
PRESENT, TEXT = 2, 66
PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "4090": 165e12,
}  # dense bf16, as published
LEAST_S = 45  # what a configuration may take: with less left, none is begun


@dataclass(frozen=True)
class Configuration:
    model: str
    kind: str  # packed, padded or lerobot
    batch: int
    recompute: bool = False
    compiled: bool = False
    attention: str = "auto"

    @property
    def name(self) -> str:
        words = [self.model, self.kind, f"batch {self.batch}"]
        words += ["recomputed"] * self.recompute + ["compiled"] * self.compiled
        return ", ".join(words + [f"{self.attention} attention"] * (self.attention != "auto"))


def configurations(batch: int) -> Iterator[Configuration]:
    """Most important first."""
    for model in ("pi05", "gr00t"):
        yield Configuration(model, "packed", batch, recompute=True)
        yield Configuration(model, "padded", batch, recompute=True)
        if model == "pi05":
            yield Configuration(model, "lerobot", batch, recompute=True)
        yield Configuration(model, "packed", batch, recompute=True, compiled=True)
    yield Configuration("pi05", "packed", batch)
    yield Configuration("pi05", "padded", batch, recompute=True, compiled=True)
    yield Configuration("pi05", "packed", batch, recompute=True, attention="sdpa")
    yield Configuration("pi05", "packed", 2 * batch, recompute=True, compiled=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=420)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of gpu_models.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=list(PRESETS), default="full")
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    out = arguments.out / "gpu_models.json"
    ends, device = time.monotonic() + arguments.budget_s, torch.device(arguments.device)
    least_s = LEAST_S if device.type == "cuda" else 1
    found: dict[str, Any] = {"machine": machine(device), "size": arguments.size, "steps": {}, "attention": {}}
    for each in configurations(arguments.batch):
        if ends - time.monotonic() < least_s:
            found["steps"][each.name] = {"skipped": "the budget is over"}
            continue
        note(found, "steps", each.name, partial(measured, each, arguments.size, device, ends), out)
    for case, segments in attention_cases(arguments.batch, arguments.size).items():
        for name in BACKENDS:
            if ends - time.monotonic() < least_s / 4:
                break
            run = partial(attended, name, segments, case, device)
            note(found, "attention", f"{case}, {name}", run, out)


def note(found: dict[str, Any], table: str, name: str, run: Callable[[], dict[str, Any]], out: Path) -> None:
    """Add a result, or why there is none, and write all of them."""
    try:
        found[table][name] = run()
    except Exception as error:  # out of memory, a kernel that is not there: the next one may do
        found[table][name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(name, found[table][name], flush=True)


def machine(device: torch.device) -> dict[str, str]:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    cuda = str(torch.version.cuda) if device.type == "cuda" else ""
    return {"card": card, "torch": torch.__version__, "cuda": cuda, "python": sys.version.split()[0]}


def measured(c: Configuration, size: str, device: torch.device, ends: float) -> dict[str, Any]:
    """Samples per second, utilisation and peak memory of forward and backward passes."""
    torch.manual_seed(0)
    family = find_family(c.model)
    config = ModelConfig(name=c.model, preset=PRESETS[size][c.model])
    sizes = family.resolve(config, vocab_size=0, state_dim=STATE_DIM, action_dim=ACTION_DIM)
    if size == "tiny" and c.model == "pi05":
        sizes = replace(sizes, heads=8, head_dim=16)  # LeRobot has eight heads built in
    with device:
        model: Any = family.build(sizes)
    real = batch_of(sizes, c.batch, PRESENT, TEXT)
    step = lerobot_step(model, sizes, real, c, device) if c.kind == "lerobot" else our_step(model, sizes, real, c)
    seconds = timed(step, device, ends)
    flops = 3 * family.forward_flops(sizes, real, 1)
    peak = next((value for name, value in PEAK_FLOPS.items() if name in machine(device)["card"]), float("nan"))
    return {
        "samples_per_s": c.batch / seconds,
        "step_s": seconds,
        "utilisation": flops / seconds / peak,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
    }


def our_step(model: Any, sizes: Any, real: PackedBatch, c: Configuration) -> Callable[[], None]:
    if c.compiled:
        compile_regions(model)
    if c.recompute:
        recompute_layers(model)
    model.attention = c.attention
    batch = real if c.kind == "packed" else batch_of(sizes, c.batch, CAMERAS, SLOTS)
    return lambda: step(model, batch)


def step(model: Any, batch: PackedBatch) -> None:
    """Forward and backward pass; the loss is the squared velocity error of actions that are zero."""
    model.zero_grad(set_to_none=True)
    device, dim = model.device, model.config.max_action_dim
    times, noise = keyed_draws(0, batch.sample_ids_B3, 0, batch.num_actions_B, dim, flow=model.flow)
    with torch.autocast(device.type, torch.bfloat16):
        noised = torch.from_numpy(noise).to(device)
        velocity = model(batch, noised, torch.from_numpy(times).to(device))
    (velocity - noised)[:, :ACTION_DIM].square().mean().backward()


def lerobot_step(
    ours: Any, sizes: Any, real: PackedBatch, c: Configuration, device: torch.device
) -> Callable[[], None]:
    """LeRobot's own modules, fed what LeRobot feeds them: every camera and every text slot."""
    if find_spec("lerobot") is None:
        raise RuntimeError("LeRobot is not installed")
    from peers import lerobot_pi05, padded_inputs

    weights = {name: value.cpu() for name, value in ours.state_dict().items()}
    ours.to("meta")
    model = lerobot_pi05(sizes, weights, checkpointing=c.recompute).to(device).train()
    inputs = padded_inputs(real, sizes, cameras=CAMERAS, slots=SLOTS)
    inputs = [[x.to(device) for x in each] if isinstance(each, list) else each.to(device) for each in inputs]
    shape = (real.num_samples, sizes.action_horizon, sizes.max_action_dim)
    actions, noise = torch.zeros(shape, device=device), torch.randn(shape, device=device)
    times = torch.full((real.num_samples,), 0.5, device=device)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            losses = model.forward(*inputs, actions, noise, times)
        losses[..., :ACTION_DIM].mean().backward()

    return run


def batch_of(sizes: Any, num_samples: int, cameras: int, text: int) -> PackedBatch:
    rng = np.random.default_rng(0)
    shape = (cameras, sizes.image_size, sizes.image_size, 3)

    def sample(number: int) -> Sample:
        pictures = rng.integers(0, 256, shape).astype(np.uint8)
        return Sample(
            id=SampleId(0, number, 0),
            images={str(k): picture for k, picture in enumerate(pictures)},
            prompt_ids=rng.integers(0, 250, text),
            state_A=np.zeros(STATE_DIM, np.float32),
            actions_SA=np.zeros((sizes.action_horizon, ACTION_DIM), np.float32),
        )

    return pack([sample(i) for i in range(num_samples)])


def timed(run: Callable[[], None], device: torch.device, ends: float, least: int = 3, most: int = 12) -> float:
    """The median of some runs after two that warm up."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times: list[float] = []
    for number in range(2 + most):
        began = time.monotonic()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= 2:
            times.append(time.monotonic() - began)
        if len(times) >= least and time.monotonic() > min(ends, began + 60):
            break
    return float(np.median(times))


def attention_cases(batch: int, size: str) -> dict[str, Segments]:
    """What π0.5 asks at full size: pictures, prefixes with ragged text, and actions over their prefixes."""
    patches, horizon = (256, 50) if size == "full" else (16, 4)
    text = np.random.default_rng(0).integers(20, 120, batch)
    prefix = tuple(int(PRESENT * patches + n) for n in text)
    return {
        "vision": Segments.self_attention((patches,) * (PRESENT * batch)),
        "prefix": Segments.self_attention(prefix),
        "actions": Segments((horizon,) * batch, tuple(n + horizon for n in prefix)),
    }


def attended(name: str, segments: Segments, case: str, device: torch.device) -> dict[str, float]:
    """Milliseconds of one layer's attention, forward and backward, in bf16."""
    heads, kv_heads, dim = (16, 16, 72) if case == "vision" else (8, 1, 256)
    shapes = ((segments.num_queries, heads, dim), *((segments.num_keys, kv_heads, dim),) * 2)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    chosen = replace(segments, backend=name)
    seconds = timed(lambda: attend(q, k, v, chosen).sum().backward(), device, time.monotonic() + 5)
    return {"ms": 1e3 * seconds}


if __name__ == "__main__":
    main()
