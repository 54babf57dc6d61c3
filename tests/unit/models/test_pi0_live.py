"""Our π0 and π0.5 against LeRobot's own, run here, at sizes that no golden file has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pi0_reference import sizes_of, velocity_and_loss
from reference import close, packed

from vlarge.models.pi0.convert import from_lerobot, naming, to_lerobot
from vlarge.models.pi0.model import Pi0

pytestmark = pytest.mark.long  # LeRobot takes tens of seconds to import


@pytest.fixture(scope="module")
def reference(shared: Path) -> ModuleType:
    sys.path.insert(0, str(shared / "oracle"))
    return importlib.import_module("gold_pi")


def drawn_config(seed: int) -> dict[str, Any]:
    """Sizes at random. LeRobot has 8 query heads and 1 key head built in.

    Few action dimensions are left out: the gradient of their bias is a sum that cancels to its rounding errors.
    """
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int, step: int = 1) -> int:
        return step * int(rng.integers(low, high + 1))

    batch, cameras, slots, chunk, max_action, max_state = draw(1, 5), draw(1, 3), draw(2, 20), draw(1, 9), 9, 11
    lengths = [int(rng.integers(1, slots + 1)) for _ in range(batch)]
    missing = [[b, k] for b in range(batch) for k in range(cameras) if rng.random() < 0.3]
    heads, patch = draw(1, 4), draw(4, 8)
    vision = {
        "width": heads * draw(2, 4, 4), "depth": draw(1, 3), "heads": heads, "mlp": draw(5, 30, 2),
        "patch": patch, "image": patch * draw(1, 3),
    }  # fmt: skip
    return {
        "width": draw(6, 40, 2), "depth": draw(1, 4), "mlp": draw(10, 80), "heads": 8, "head_dim": draw(2, 12, 2),
        "expert_width": draw(6, 30, 2), "expert_mlp": draw(10, 60), "vocab": draw(30, 300), "vision": vision,
        "cameras": cameras, "slots": slots, "lengths": lengths, "missing": missing, "chunk": chunk,
        "max_action": max_action, "action_dim": draw(3, max_action), "max_state": max_state,
        "state_dim": draw(1, max_state), "steps": draw(1, 10), "time": rng.uniform(0.001, 1, batch).tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["pi05", "pi0"])
def test_velocity_loss_gradients_and_actions_are_lerobots(reference: ModuleType, policy: str, seed: int) -> None:
    torch.set_num_threads(1)
    c = drawn_config(10 * seed + (policy == "pi0"))
    theirs = reference.build(policy, c)
    reference.C.randomize(theirs, seed)
    t, _ = reference.run(policy, theirs, c, reference.make_inputs(policy, c, seed))
    ours = Pi0(sizes_of(c, policy == "pi0"))
    ours.load_state_dict(from_lerobot(theirs.state_dict(), ours.state_dict(), ours.config))
    velocity, loss = velocity_and_loss(ours, t, c)
    close(velocity, t["out.v_t"].flatten(0, 1), 5e-6)
    close(loss, t["out.loss"], 5e-6)
    loss.backward()
    for name, parameter in ours.named_parameters():
        gradient = t.get("grad." + naming(ours.config).theirs(name))
        if gradient is not None and parameter.grad is not None:
            close(parameter.grad.reshape(-1), gradient.reshape(-1)[: parameter.numel()], 1e-5)
    close(ours.sample(packed(t, c), t["in.sample_noise"].flatten(0, 1)), t["out.sampled_actions"].flatten(0, 1), 1e-5)
    theirs.load_state_dict(to_lerobot(ours.state_dict(), ours.config))
    back, _ = reference.forward(policy, theirs.model, {k[3:]: v for k, v in t.items() if k.startswith("in.")})
    close(back, t["out.v_t"], 5e-6)
