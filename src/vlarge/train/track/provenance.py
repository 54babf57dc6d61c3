"""run.json: with what every start of a run was made. An allow-list; the environment as a whole is never written."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import vlarge
from vlarge.contracts import InputError
from vlarge.train.track.tracker import Tracked

LIBRARIES = (
    "torch", "numpy", "pyarrow", "av", "fsspec", "safetensors", "tokenizers", "torchvision", "transformers", "lerobot",
    "tensorboard", "wandb", "mlflow", "mlflow-skinny",
)  # fmt: skip

# Of the environment, what changes speed or results and holds no secret.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_CROSS_NIC", "NCCL_DEBUG",
    "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "OMP_PLACES",
    "OMP_PROC_BIND", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT",
)  # fmt: skip


def record_start(run: Tracked) -> None:
    """Add this start to the run's run.json. Raises InputError where that file cannot be read."""
    path = run.folder / "run.json"
    start = {"step": run.done_steps, "time_s": time.time(), "versions": versions(), "settings": settings(os.environ)}
    new = path.with_name(".run.json")
    new.write_text(json.dumps({"starts": [*recorded_starts(run.folder), start]}, indent=2) + "\n")
    new.replace(path)


def recorded_starts(folder: Path) -> list[Any]:
    """Of the run in `folder`. Raises InputError where its run.json cannot be read."""
    path = folder / "run.json"
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text())["starts"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} cannot be read: remove it, and the run's starts are listed from here on") from None


def versions() -> dict[str, Any]:
    """Of vlarge (with the commit, where it runs from a checkout), Python, and the libraries that decide a result."""
    return {
        "vlarge": vlarge.__version__,
        "commit": commit(Path(vlarge.__file__)),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **{name: found for name in LIBRARIES if (found := _version(name))},
    }


def settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """What torch is set to, and the variables of `VARIABLES` that are set."""
    has_gpu = torch.cuda.is_available()
    return {
        "torch_threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if has_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else None,
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "num_processes": torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1,
        "environment": {name: environment[name] for name in VARIABLES if name in environment},
    }


def commit(file: Path) -> str | None:
    """The commit of the checkout that `file` belongs to, with "-dirty" where something is changed; None elsewhere.

    A package installed inside somebody's checkout does not belong to it.
    """
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    return _git(file.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # no git, or a file system that hangs: the commit is not known
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
