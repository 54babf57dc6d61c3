"""The training stream: packed batches in the order that `Order` decides, decoded ahead of time in threads."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np

from vlarge.contracts import InputError, PackedBatch, Sample, SampleId
from vlarge.data.check import require_trainable
from vlarge.data.index import Dataset
from vlarge.data.order import Order
from vlarge.data.pack import pack
from vlarge.data.service.plan import Piece, epoch_of, plan_pieces, rank_slice
from vlarge.data.service.window import Closed, ReadAhead
from vlarge.data.transforms import Preparation

POLL_S = 0.2


class Stream:
    """Iterates for ever over this rank's packed batches, from `start_step` on. Close it when done.

    Global batch s holds the samples at positions [s * batch_size, (s + 1) * batch_size) of `order`, on any number of
    ranks and from any start. Frames are decoded and resized in threads, about once per epoch; where the dataset fits
    into one window of the order, once for all epochs. Raises InputError for data that cannot be trained on, at once or
    from the iteration when a file turns out to be damaged.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        preparation: Preparation,
        *,
        dataset_id: int = 0,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
        decode_threads: int = 2,
        prefetch_batches: int = 4,
    ) -> None:
        require_trainable(dataset)
        _check_fit(dataset, preparation, batch_size, world)
        self._dataset = dataset
        self._order = order
        self._preparation = preparation
        self._dataset_id = dataset_id
        self._share = batch_size, rank, world
        self._decoded_before = dataset.num_decoded
        self._closing = threading.Event()
        self._batches: queue.Queue[PackedBatch | BaseException] = queue.Queue(max(1, prefetch_batches))
        self.wait_s = 0.0
        self.frames_used = 0
        self._window = self._read_ahead(start_step, decode_threads)
        self._packer = threading.Thread(target=self._pack_batches, args=(start_step,), name="pack", daemon=True)
        self._packer.start()

    @property
    def frames_decoded(self) -> int:
        """Frames decoded since the start, those read ahead included."""
        return self._dataset.num_decoded - self._decoded_before

    @property
    def window_bytes(self) -> int:
        """An upper bound of what decoded samples take at the moment."""
        return self._window.num_bytes

    def __iter__(self) -> Iterator[PackedBatch]:
        return self

    def __next__(self) -> PackedBatch:
        start_s = time.perf_counter()
        while not self._closing.is_set():
            try:
                item = self._batches.get(timeout=POLL_S)
            except queue.Empty:
                continue
            self.wait_s += time.perf_counter() - start_s
            if isinstance(item, BaseException):
                self.close()
                raise item
            self.frames_used += len(item.images_NHWC)
            return item
        raise StopIteration

    def close(self) -> None:
        """Stop the threads. May be called twice; the iteration then ends."""
        self._closing.set()
        self._window.close()
        self._packer.join()

    def _read_ahead(self, start_step: int, num_threads: int) -> ReadAhead:
        order, world = self._order, self._share[2]
        sample_bytes = _sample_bytes(self._dataset, self._preparation)
        keep = order.is_one_window
        num_samples = order.num_frames if keep else -(-order.max_window_frames // world)
        return ReadAhead(
            plan_pieces(order, *self._share, start_step, self._starts_afresh),
            self._load,
            sample_bytes=sample_bytes,
            budget_bytes=num_samples * sample_bytes,
            keep=keep,
            num_threads=max(1, num_threads),
        )

    def _starts_afresh(self, position: int, frames: np.ndarray) -> np.ndarray:
        return self._dataset.starts_afresh(self._dataset.episodes[position], self._preparation.cameras, frames)

    def _load(self, piece: Piece) -> list[Sample]:
        episode = self._dataset.episodes[piece.episode]
        table = self._dataset.read_table(episode)
        keys, size = self._preparation.cameras, self._preparation.image_size
        images_by_key = {key: self._read_images(piece, key, size) for key in keys}
        samples = []
        for i, frame in enumerate(piece.frames):
            images = {key: images_by_key[key][i] for key in keys}
            inputs = self._preparation.observation(images, table.state_TA[frame], table.tasks[frame])
            chunk_SA = table.action_TA[frame : frame + self._preparation.action_horizon]
            sample_id = SampleId(self._dataset_id, episode.index, frame)
            samples.append(Sample(sample_id, *inputs, self._preparation.actions(chunk_SA)))
        return samples

    def _read_images(self, piece: Piece, key: str, size: int) -> list[np.ndarray]:
        images = []
        for image in self._dataset.iter_frames(self._dataset.episodes[piece.episode], key, piece.frames, size):
            if self._closing.is_set():
                raise Closed
            images.append(image)
        return images

    def _pack_batches(self, start_step: int) -> None:
        try:
            for step in count(start_step):
                self._put(pack(self._batch(step)))
        except Closed:
            pass
        except BaseException as error:  # raised again in the consumer, whatever it is
            with contextlib.suppress(Closed):
                self._put(error)

    def _batch(self, step: int) -> list[Sample]:
        start, stop = rank_slice(step, *self._share)
        samples = self._order.samples(start, stop).tolist()
        return self._window.take(
            ((epoch_of(self._order, position), episode, frame), self._order.window(position)[0])
            for position, (episode, frame) in enumerate(samples, start)
        )

    def _put(self, item: PackedBatch | BaseException) -> None:
        while not self._closing.is_set():
            try:
                return self._batches.put(item, timeout=POLL_S)
            except queue.Full:
                continue
        raise Closed


def _check_fit(dataset: Dataset, preparation: Preparation, batch_size: int, world: int) -> None:
    if batch_size < world:
        raise InputError(f"train.batch_size = {batch_size} is less than the {world} processes; each needs a sample")
    for key in preparation.cameras:
        if key not in dataset.camera_keys:
            known = ", ".join(dataset.camera_keys) or "none"
            raise InputError(
                f"{dataset.root}: the model looks at camera {key!r}, the dataset has: {known}; set data.cameras"
            )


def _sample_bytes(dataset: Dataset, preparation: Preparation) -> int:
    pixels = len(preparation.cameras) * preparation.image_size**2 * 3
    numbers = 4 * (dataset.state_dim + preparation.action_horizon * dataset.action_dim)
    return pixels + numbers + 8 * preparation.max_text_tokens
