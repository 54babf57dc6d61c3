"""The [data] table of a recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which samples a run trains on and in what order.

    path: a LeRobot dataset folder, or hf://user/name (looked up in the local Hugging Face cache).
    cameras: feature keys to use; empty means every camera that has files.
    exclude_episodes: episode numbers left out, for instance to hold some back.
    clip_frames, window_clips: the shuffle. Episodes are cut into clips of `clip_frames` frames, clips are permuted, and
    samples are drawn at random from a window of `window_clips` clips. Larger mixes better and costs memory.
    decode_threads: threads that decode video; prefetch_batches: batches kept ready ahead of the trainer.
    """

    path: str = ""
    revision: str = ""
    cameras: tuple[str, ...] = ()
    state_key: str = "observation.state"
    action_key: str = "action"
    exclude_episodes: tuple[int, ...] = ()
    normalization: str = "quantile"  # or "mean_std", "min_max"
    tokenizer: str = "bytes"  # or the path of a tokenizer.json
    max_text_tokens: int = 512
    clip_frames: int = 16
    window_clips: int = 256
    decode_threads: int = 2
    prefetch_batches: int = 4
