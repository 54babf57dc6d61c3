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
    camera_slots: the model's names of the cameras, one for each, where they differ from the dataset's; a name with
    "wrist" in it is a camera on a gripper.
    state_dims, action_dims: dimensions to keep, in this order, each a name, a number or a range as "0:7"; empty: all.
    state_scale, state_offset, action_scale, action_offset: one number for each kept dimension, which becomes
    value * scale + offset (a joint's sign and zero, which way a gripper opens); empty: as it is.
    relative_actions: action dimensions that are targets for the same dimension of the state; the model learns their
    distance from the state at the start of the chunk.
    augment: crop, turn and recolour pictures in training, as openpi does for π0.5.
    decode_threads: threads that decode video; prefetch_batches: batches kept ready ahead of the trainer.
    index_dir: where indexes of datasets are kept, so that the next run opens them at once.
    """

    normalization: str = "quantile"  # or "mean_std", "min_max"
    tokenizer: str = "bytes"  # or the path of a tokenizer.json
    max_text_tokens: int = setting(512, least=1)
    camera_slots: tuple[str, ...] = ()
    state_dims: tuple[str, ...] = ()
    action_dims: tuple[str, ...] = ()
    state_scale: tuple[float, ...] = ()
    state_offset: tuple[float, ...] = ()
    action_scale: tuple[float, ...] = ()
    action_offset: tuple[float, ...] = ()
    relative_actions: tuple[str, ...] = ()
    augment: bool = False
    clip_frames: int = setting(16, least=1)
    window_clips: int = setting(256, least=1)
    decode_threads: int = setting(2, least=1)
    prefetch_batches: int = setting(4, least=1)
    index_dir: str = "~/.cache/vlarge/index"
