"""The [data] table of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from vlarge.contracts import setting


@dataclass(frozen=True, kw_only=True)
class Source:
    """One dataset: where it lies and what of it is used.

    path: a LeRobot or RLDS folder, an object store's address, or hf://user/name (looked up in the local Hugging Face
    cache). cameras: feature keys to use; empty means every camera that has files.
    exclude_episodes: episode numbers left out, for instance to hold some back.
    quarantine: a list that `vlarge data check --quarantine FILE` wrote; what it names is left out.
    """

    path: str = ""
    revision: str = ""
    cameras: tuple[str, ...] = ()
    state_key: str = "observation.state"
    action_key: str = "action"
    exclude_episodes: tuple[int, ...] = ()
    quarantine: str = ""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Source):
    """Which samples a run trains on and in what order.

    clip_frames, window_clips: the shuffle. Episodes are cut into clips of `clip_frames` frames, clips are permuted, and
    samples are drawn at random from a window of `window_clips` clips. Larger mixes better and costs memory.
    decode_threads: threads that decode video; prefetch_batches: batches kept ready ahead of the trainer.
    index_dir: where indexes of datasets are kept, so that the next run opens them at once, and in its folder `blocks`
    parts of files from object stores, up to `remote_cache_bytes`. remote_deadline_s: for how long a read that fails is
    tried again before the run stops.
    """

    normalization: str = "quantile"  # or "mean_std", "min_max"
    tokenizer: str = "bytes"  # or the path of a tokenizer.json
    max_text_tokens: int = setting(512, least=1)
    clip_frames: int = setting(16, least=1)
    window_clips: int = setting(256, least=1)
    decode_threads: int = setting(2, least=1)
    prefetch_batches: int = setting(4, least=1)
    index_dir: str = "~/.cache/vlarge/index"
    remote_cache_bytes: int = setting(32 << 30, least=0)
    remote_deadline_s: float = setting(120.0, least=0)
