"""The [data] table of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vlarge.contracts import InputError, setting


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
class PreparedSource(Source):
    """One dataset, and how what it shows and records becomes the model's.

    embodiment: the robot's name. Datasets of one embodiment share statistics, and a policy keeps what it needs to act
    on each; empty: the dataset's folder name.
    camera_slots: the model's names of the cameras, one for each, where they differ from the dataset's; a name with
    "wrist" in it is a camera on a gripper.
    state_dims, action_dims: dimensions to keep, in this order, each a name, a number or a range as "0:7"; empty: all.
    state_scale, state_offset, action_scale, action_offset: one number for each kept dimension, which becomes
    value * scale + offset (a joint's sign and zero, which way a gripper opens); empty: as it is.
    relative_actions: action dimensions that are targets for the same dimension of the state; the model learns their
    distance from the state at the start of the chunk.
    """

    embodiment: str = ""
    camera_slots: tuple[str, ...] = ()
    state_dims: tuple[str, ...] = ()
    action_dims: tuple[str, ...] = ()
    state_scale: tuple[float, ...] = ()
    state_offset: tuple[float, ...] = ()
    action_scale: tuple[float, ...] = ()
    action_offset: tuple[float, ...] = ()
    relative_actions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MixturePart(PreparedSource):
    """One `[[data.mixture]]` table. weight: its share of the samples, relative to the other parts' weights."""

    weight: float = setting(1.0, above=0)


@dataclass(frozen=True, kw_only=True)
class DataConfig(PreparedSource):
    """Which samples a run trains on and in what order.

    mixture: several datasets instead of `path`, each with its own cameras, dimensions and rate; what describes one
    dataset is then said there.
    repeat_last_action: fill chunks at an episode's end up with its last action and learn from it too, as LeRobot's and
    openpi's loaders do; otherwise a chunk ends with its episode. Only to compare with their numbers.
    augment: crop, turn and recolour pictures in training, as openpi does for π0.5.
    clip_frames, window_samples: the shuffle. Episodes are cut into clips of about `clip_frames` frames (whole groups of
    pictures), clips are permuted, and samples are drawn at random from a window of clips with `window_samples` samples.
    Larger mixes better and costs memory; 0 shuffles all frames of an epoch, and decodes many of them several times.
    workers: threads of each node's data service; -1: one for each core; 0: no service, this process decodes.
    memory_bytes: what the service may take for decoded frames; a dataset that fits into a quarter of it stays there.
    cache: "resized" keeps frames at training resolution in `cache_dir` on local disk as the first epoch passes, at most
    `cache_bytes` of each dataset, so that later epochs and runs need not decode; "none" does not.
    max_bad_fraction: of the run's samples so far may be unreadable and replaced; more stop it.
    stall_s: a wait for data so long is reported, with what is being waited for.
    index_dir: where indexes of datasets are kept, so that the next run opens them at once, and in its folder `blocks`
    parts of files from object stores, up to `remote_cache_bytes`. remote_deadline_s: for how long a read that fails is
    tried again before the run stops.
    """

    mixture: tuple[MixturePart, ...] = ()
    normalization: str = "quantile"  # or "mean_std", "min_max"
    tokenizer: str = "bytes"  # or the path of a tokenizer.json, of a sentencepiece model, or of a folder with one
    max_text_tokens: int = setting(512, least=1)
    repeat_last_action: bool = False
    augment: bool = False
    clip_frames: int = setting(16, least=1)
    window_samples: int = setting(4096, least=0)
    workers: int = setting(-1, least=-1)
    memory_bytes: int = setting(4 << 30, least=1 << 20)
    cache: str = "none"  # or "resized"
    cache_dir: str = "~/.cache/vlarge/frames"
    cache_bytes: int = setting(100 << 30, least=0)
    max_bad_fraction: float = setting(0.05, least=0)
    stall_s: float = setting(10.0, above=0)
    index_dir: str = "~/.cache/vlarge/index"
    remote_cache_bytes: int = setting(32 << 30, least=0)
    remote_deadline_s: float = setting(120.0, least=0)

    def parts(self) -> tuple[MixturePart, ...]:
        """Every dataset of the run: the mixture's, or the one that `path` names.

        Raises InputError when there is none, and when something that describes one dataset stands beside a mixture.
        """
        own = {item.name: getattr(self, item.name) for item in fields(PreparedSource)}
        if not self.mixture:
            if not self.path:
                raise InputError(
                    "no dataset: give --data.path FOLDER (LeRobot or RLDS), hf://user/name, or data.mixture"
                )
            return (MixturePart(**own),)
        for item in fields(PreparedSource):
            if own[item.name] != item.default:
                raise InputError(
                    f"data.{item.name} describes one dataset: say it in the tables [[data.mixture]] instead"
                )
        if not all(part.path for part in self.mixture):
            raise InputError("a table [[data.mixture]] has no path: give the folder of its dataset")
        return self.mixture
