"""A checkpoint as a `contracts.Policy`: observation -> inputs -> denoised chunk -> raw actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlarge.contracts import EnvSpec, InputError, Observation, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.models.flow import keyed_generator
from vlarge.policy.files import PolicyFiles, read_policy

UNUSED_ID = SampleId(0, 0, 0)


def load_policy(path: str | Path, device: str = "cpu", embodiment: str = "") -> CheckpointPolicy:
    """Load a run directory, a checkpoint or a policy folder, to act on one embodiment.

    embodiment: may be left out where the policy knows only one. Raises InputError naming what is missing or wrong.
    """
    known = load_policies(path, device)
    if not embodiment and len(known) > 1:
        raise InputError(f"{path} acts for {', '.join(known)}: say which")
    if embodiment and embodiment not in known:
        raise InputError(f"{path} does not know the embodiment {embodiment!r}; it acts for {', '.join(known)}")
    return known[embodiment or next(iter(known))]


def load_policies(path: str | Path, device: str = "cpu") -> dict[str, CheckpointPolicy]:
    """The same for every embodiment that it knows, over one network."""
    files = read_policy(Path(path))
    if not files.preparations:
        raise InputError(
            f"{path} has no statistics of a robot, or no tokenizer.json beside them: fine-tune it with model.init first"
        )
    model = files.build(torch.device(device))
    return {name: CheckpointPolicy(files, name, model, torch.device(device)) for name in files.preparations}


class CheckpointPolicy:
    """One observation in, one chunk of raw actions out. Holds no episode state: see `chunks.ChunkQueue`."""

    def __init__(self, files: PolicyFiles, embodiment: str, model: Any, device: torch.device) -> None:
        several = f" for {embodiment}" if len(files.preparations) > 1 else ""
        self.name = f"{files.model_name} step {files.step}{several}"
        self.preparation = files.preparations[embodiment]
        self.action_horizon = self.preparation.action_horizon
        self.num_action_columns = files.sizes.max_action_dim
        self.device = device
        self.model = model  # a module that also has `sample(batch, noise)`

    def check(self, spec: EnvSpec) -> None:
        """Raise InputError, naming the difference, if this policy cannot act in an environment of this spec."""
        self.preparation.check_fit(self.name, spec.task, spec.cameras, spec.state_dim, spec.action_dim)

    @torch.no_grad()
    def infer(self, observation: Observation, noise_key: Sequence[int]) -> np.ndarray:
        """Raw actions float32 [action_horizon, A]; the noise that starts them is a function of `noise_key`."""
        p = self.preparation
        images, prompt_ids, state_A = p.observation(observation.images, observation.state, observation.task)
        blank = np.zeros((self.action_horizon, p.action_normalizer.dim), np.float32)
        batch = pack([Sample(UNUSED_ID, images, prompt_ids, state_A, blank, p.embodiment)])
        shape = (self.action_horizon, self.num_action_columns)
        noise = keyed_generator(*noise_key).standard_normal(shape, dtype=np.float32)
        actions = self.model.sample(batch, torch.from_numpy(noise).to(self.device))
        return p.actions_inverse(actions.cpu().numpy()[:, : p.action_normalizer.dim], observation.state)
