"""Reads the numbers and pictures of RLDS episodes that have been indexed, by frame number."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.cache import ByteCache
from vlarge.data.check import Unreachable
from vlarge.data.config import Source
from vlarge.data.fetch import Store
from vlarge.data.formats.rlds_features import Features, Steps
from vlarge.data.formats.rlds_records import read_record
from vlarge.data.manifest import Episode, EpisodeTable, Manifest
from vlarge.data.video import decode_image

if TYPE_CHECKING:
    import av

RECORD_CACHE_BYTES = 256 << 20


class RldsReader:
    """Threads may share one. Keeps recently read records, pictures encoded, within a budget of bytes; no open file.

    num_decoded: pictures decoded so far.
    """

    def __init__(self, store: Store, manifest: Manifest, config: Source) -> None:
        self._store = store
        features = Features(store, next(f for f in manifest.metadata_files if f.endswith("features.json")))
        used = [k for k, c in manifest.cameras.items() if c.present and (not config.cameras or k in config.cameras)]
        self._parser = features.parser(config.state_key, config.action_key, used)
        self._records: ByteCache[tuple[str, int], Steps] = ByteCache(self._load, RECORD_CACHE_BYTES)
        self._lock = threading.Lock()
        self.num_decoded = 0

    def read_table(self, episode: Episode) -> EpisodeTable:
        """State, action and instruction of every frame. Raises InputError naming the file."""
        steps = self._steps(episode)
        return EpisodeTable(steps.state_TA, steps.action_TA, steps.tasks)

    def starts_afresh(self, episode: Episode, camera_keys: Sequence[str], frames: np.ndarray) -> np.ndarray:
        """bool [n], all true: each picture is decoded by itself."""
        return np.ones(len(frames), bool)

    def num_packets(self, episode: Episode, camera_key: str, frame_indices: Sequence[int]) -> int:
        """As many as there are frames."""
        return len(frame_indices)

    def gop_frames(self, episode: Episode, camera_key: str) -> int:
        """1: each picture stands alone."""
        return 1

    def pictures(self, episode: Episode, camera_key: str, frame_indices: Sequence[int]) -> Iterator[np.ndarray]:
        """uint8 [H, W, 3] of each frame (ascending, no repeats). Raises InputError naming episode, file and frame."""
        pictures = self._steps(episode).pictures.get(camera_key)
        where = f"episode {episode.index}, camera {camera_key} ({episode.table_file})"
        if pictures is None:
            raise InputError(f"{where}: the record has no such pictures, or the camera is not in data.cameras")
        with self._lock:
            self.num_decoded += len(frame_indices)
        decoder = PictureDecoder()
        for i in frame_indices:
            yield decoder.decode(pictures[i], f"{where}, frame {i}")

    def _steps(self, episode: Episode) -> Steps:
        try:
            return self._records.get((episode.table_file, episode.first_row))
        except Unreachable:
            raise  # not the episode's fault
        except InputError as error:
            raise InputError(f"episode {episode.index} ({episode.table_file}) has changed: {error}") from error

    def _load(self, key: tuple[str, int]) -> Steps:
        self._store.require(key[0])
        return self._parser.parse(read_record(self._store, *key))


class PictureDecoder:
    """Decodes PNG and JPEG pictures, for one thread. One decoder serves all JPEGs, which for small ones is most of the
    time; FFmpeg's PNG decoder carries its state from one picture into the next, so every PNG has its own.
    """

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._jpeg: av.VideoCodecContext | None = None
        self._reformatter = VideoReformatter()

    def decode(self, data: bytes, where: str) -> np.ndarray:
        """uint8 [H, W, 3] RGB; grey and alpha become RGB. Raises InputError, for a picture that is cut short too."""
        import av

        if data[1:4] == b"PNG":
            return decode_image(data, where)
        decoder, self._jpeg = self._jpeg or _jpeg_decoder(), None  # one that has failed is not used again
        try:
            [picture] = decoder.decode(av.Packet(data)) if data else []
        except MemoryError:
            raise  # of this machine, though FFmpeg counts it among its own
        except (av.error.FFmpegError, ValueError) as error:
            raise InputError(f"{where}: the picture cannot be decoded ({error})") from error
        self._jpeg = decoder
        return self._reformatter.reformat(picture, format="rgb24").to_ndarray()


def _jpeg_decoder() -> av.VideoCodecContext:
    import av

    decoder = av.CodecContext.create("mjpeg", "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.thread_count = 1
    decoder.options = {"err_detect": "explode"}  # without it, what a cut file lacks is drawn in grey
    return decoder
