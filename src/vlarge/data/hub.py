"""Names of datasets and models: a local path, or a Hugging Face id looked up in the local caches first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from vlarge.contracts import InputError
from vlarge.data.fetch import is_address

HUB_ID = re.compile(r"hf://(?:datasets/|models/)?([\w.-]+/[\w.-]+?)/?(?:@([\w./-]+))?")


def resolve(path_or_id: str, revision: str = "", repo_type: str = "dataset") -> Path:
    """The local folder of a path or of `hf://user/name[@revision]`, downloading it only when no cache has it.

    revision: a branch, tag or commit; "" is what the cache's `main` points to. Raises InputError when there is no such
    path, or when the id is in no cache and cannot be downloaded; it then names the folders looked in.
    """
    if not path_or_id:
        raise InputError(f"no {repo_type} given; name a folder or hf://user/name")
    if not path_or_id.startswith("hf://"):
        path = Path(os.path.expanduser(path_or_id))
        if not os.path.isdir(path):
            why = "is not a folder" if os.path.exists(path) else "does not exist"
            name = str(path) if str(path).isprintable() else repr(str(path))
            raise InputError(f"{name} {why}; give the path of a {repo_type} folder, or hf://user/name")
        return path
    match = HUB_ID.fullmatch(path_or_id)
    if not match or ".." in path_or_id:
        raise InputError(f"{path_or_id!r} is not a Hugging Face id; write hf://user/name")
    return _from_hub(match[1], revision or match[2] or "", repo_type)


def resolve_dataset(path_or_id: str, revision: str = "") -> str | Path:
    """The same for a dataset, which may also lie in an object store: its address stays as it is."""
    return path_or_id if is_address(path_or_id) else resolve(path_or_id.removeprefix("file://"), revision)


def _from_hub(repo_id: str, revision: str, repo_type: str) -> Path:
    looked = []
    for folder in _candidates(repo_id, revision, repo_type):
        looked.append(str(folder))
        if folder.is_dir():
            return folder
    where = f"hf://{repo_id}{'@' + revision if revision else ''} is in no local cache (looked in {', '.join(looked)})"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise InputError(f"{where} and HF_HUB_OFFLINE is set; download it first, or give a local path")
    return _download(repo_id, revision, repo_type, where)


def _candidates(repo_id: str, revision: str, repo_type: str) -> Iterator[Path]:
    # LeRobot's own folder knows no revisions; a snapshot is found by commit, or through a branch or tag.
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    lerobot = Path(os.environ.get("HF_LEROBOT_HOME") or home / "lerobot").expanduser()
    if repo_type == "dataset" and not revision:
        yield lerobot / repo_id
    for hub in (Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser(), lerobot / "hub"):
        repo = hub / f"{repo_type}s--{repo_id.replace('/', '--')}"
        reference = repo / "refs" / (revision or "main")
        commit = reference.read_text().strip() if reference.is_file() else revision or "main"
        yield repo / "snapshots" / commit


def _download(repo_id: str, revision: str, repo_type: str, where: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repo_id, repo_type=repo_type, revision=revision or None))
    except Exception as error:  # of the network, of the hub, of a missing library: all the same to the user
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{where} and cannot be downloaded: {reason}") from error
