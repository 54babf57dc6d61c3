"""Run under torchrun: five steps over each layout of the mesh, beside the same steps in one process.

argv: JSON [[model, name, {axis: degree}, {train setting: value}], …]. The main process prints one JSON line for each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models import gr00t, pi0, smolvla
from vlarge.models.adapt import adapt
from vlarge.models.config import ModelConfig
from vlarge.train.config import ParallelConfig, TrainConfig
from vlarge.train.engines import make_engine
from vlarge.train.optim import learning_rate
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.world import World, joined_world

NUM_STEPS, NUM_SAMPLES, ACTION_DIM = 5, 11, 5
PI0 = pi0.Config(
    vocab_size=40, width=48, depth=4, mlp=64, heads=4, kv_heads=1, head_dim=8, expert_width=24, expert_mlp=40,
    vision_width=32, vision_depth=2, vision_mlp=48, vision_heads=4, patch=8, image_size=16, action_horizon=6,
    max_action_dim=ACTION_DIM, max_state_dim=0,
)  # fmt: skip
GROOT = gr00t.Config(
    vocab_size=40, width=48, depth=2, mlp=64, heads=8, kv_heads=4, head_dim=8, image_token=39, pad_token=0,
    vision_width=32, vision_depth=2, vision_mlp=48, vision_heads=4, patch=8, image_size=16, vl_depth=1, vl_heads=4,
    dit_depth=4, dit_heads=4, dit_head_dim=8, head_width=20, future_tokens=3, num_embodiments=4, action_horizon=6,
    max_action_dim=ACTION_DIM, max_state_dim=4,
)  # fmt: skip
SMOLVLA = smolvla.Config(
    vocab_size=40, width=48, depth=4, mlp=64, heads=6, kv_heads=2, head_dim=8, expert_width=24, expert_mlp=40,
    vision_width=32, vision_depth=2, vision_mlp=48, vision_heads=4, patch=8, image_size=16, scale_factor=2,
    self_attn_every=2, action_horizon=6, max_action_dim=ACTION_DIM, max_state_dim=4,
)  # fmt: skip
MODELS: dict[str, tuple[Any, Any]] = {
    "pi05": (pi0, PI0),
    "pi0": (pi0, replace(PI0, max_state_dim=4)),
    "moe": (pi0, replace(PI0, num_experts=4)),
    "gr00t": (gr00t, GROOT),
    "smolvla": (smolvla, SMOLVLA),
    "lora": (pi0, PI0),
    "frozen": (gr00t, GROOT),
}


ADAPTED = {
    "lora": ModelConfig(freeze=("vision", "language", "expert"), lora_rank=2),
    "frozen": ModelConfig(freeze=("vision", "language")),
}


def make_samples(step: int) -> list[Sample]:
    rng = np.random.default_rng(step)

    def one(i: int) -> Sample:
        num_images, length, dims = (
            int(rng.integers(0, 3)),
            int(rng.integers(3, 9)),
            int(rng.integers(3, ACTION_DIM + 1)),
        )
        images = {f"camera{k}": rng.integers(0, 256, (16, 16, 3), np.uint8) for k in range(num_images)}
        ids = np.concatenate((np.full(num_images, 39), rng.integers(0, 39, length)))
        actions = rng.standard_normal((int(rng.integers(1, 7)), dims)).astype(np.float32)
        return Sample(SampleId(0, step, i), images, ids, rng.standard_normal(4).astype(np.float32), actions, i % 3)

    return [one(i) for i in range(NUM_SAMPLES)]


def share(samples: list[Sample], mesh: Mesh, num_micro: int) -> list[PackedBatch]:
    own = samples[mesh.data_rank :: mesh.degrees.num_data]
    return [pack(own[i::num_micro]) for i in range(num_micro)]


def run(model: str, degrees: dict[str, Any], world: World, more: dict[str, Any]) -> list[list[float]]:
    family, sizes = MODELS[model]
    usual = {"dtype": "fp32", "warmup_steps": 2, "steps": NUM_STEPS, "lr": 1e-2, "suffixes_per_prefix": 2}
    c = TrainConfig(**(usual | more))
    parallel = ParallelConfig(**degrees).resolve(world.size)
    division = family.division(sizes)
    division.check(num_stages=parallel.num_stages, ep=parallel.ep, cp=parallel.cp, tp=parallel.tp)
    mesh = Mesh(parallel, world, "cpu")
    if c.compile:
        torch._dynamo.reset()
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # otherwise the rest runs uncompiled
    torch.manual_seed(0)
    network = family.build(sizes)
    adapt(network, ADAPTED.get(model, ModelConfig()))
    for parameter in network.parameters():  # nothing starts at zero, so that everything has a gradient
        torch.nn.init.normal_(parameter, std=0.1)
    engine = make_engine(network.train(), division, mesh, c, seed=3, device=torch.device("cpu"))
    num_micro = 2 * parallel.num_stages if parallel.pp > 1 else 2
    found = []
    for step in range(NUM_STEPS):
        samples = make_samples(step)
        whole = pack(samples)
        batches = share(samples, mesh, num_micro)
        num_tokens = float(whole.num_actions_B.sum())
        loss = engine.add_gradients(batches, step, whole.num_valid_values, num_tokens)
        engine.settle_mixtures()
        norm = engine.update(learning_rate(step, c), step)
        (total,) = world.sum(float(loss))
        found.append([total, float(norm)])
    return found


def main() -> None:
    torch.set_num_threads(1)
    with joined_world() as world:
        for model, name, degrees, *more in json.loads(sys.argv[1]):
            settings = more[0] if more else {}
            alone = run(model, {}, World(), settings) if world.is_main else []
            together = run(model, degrees, world, settings)
            if world.is_main:
                print(json.dumps({"model": model, "name": name, "alone": alone, "together": together}), flush=True)


if __name__ == "__main__":
    main()
