"""Saving beside the training and loading into any layout: what the trainer calls, on all processes alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import Metadata
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.storage import WriteResult

from vlarge.contracts import InputError
from vlarge.train.checkpoint.peers import Peers
from vlarge.train.checkpoint.planning import Planning
from vlarge.train.checkpoint.reading import Reader, fill
from vlarge.train.checkpoint.shelf import CHECKPOINTS, POLICY, STATE, Shelf
from vlarge.train.checkpoint.staging import Staging
from vlarge.train.checkpoint.verify import form_of, read_metadata, require_files, require_fit, require_names
from vlarge.train.checkpoint.writing import digests, require_finite, require_same, write_metadata, write_shards

Export = Callable[[Path, Reader], None]
PEER_TIMEOUT_S = 1800.0  # while one process writes or exports, the others wait for it


class Checkpoints:
    """The checkpoints of a run, in a folder that all its processes see. Every method but `last` is for all of them.

    A state is a nested dict of tensors, DTensors (any mesh), numbers and strings; processes may hold different names
    (pipeline stages). What several hold under one name must be the same, so what belongs to one process (a state of
    its random numbers) needs a name of its own.

    Collectives run on a group of their own, made here by all processes at once. `finish` before process groups are
    destroyed.
    """

    def __init__(self, run_dir: Path, keep_last: int, *, timeout_s: float = PEER_TIMEOUT_S) -> None:
        self._shelf = Shelf(run_dir / CHECKPOINTS, keep_last)
        self._peers = Peers(timeout_s)
        self._planning = Planning(self._peers)
        self._staging = Staging()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[Path] | None = None
        self._saved: Path | None = None  # written or loaded here

    def begin(
        self, step: int, state: dict[str, Any], export: Export, *, must_hold: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Copy the state and return; a thread writes, verifies and publishes checkpoint `step`.

        One save at a time: waits for the one before, and raises what `finish` would have. Nothing happens where this
        checkpoint was saved or loaded last. Call `fence` before the state is changed.

        export: run on the main process's thread to write the folder it is given, from what it reads of the checkpoint;
        it must not look at the state, which goes on. must_hold: flat names and whole shapes that the processes'
        states must have at least together, such as all weights of the model; the main process's counts.
        """
        saved, final = self.finish(), self._shelf.final(step)
        if saved is not None and saved.resolve() == final.resolve():
            if self._peers.is_main:
                self._shelf.point_last_at(final)  # a run killed just before that left it
            return
        leaves, _ = flatten_state_dict(state)
        self._planning.follow(state, leaves)
        self._staging.copy(leaves, self._planning.plan)
        save = partial(self._save, step, digests(leaves), export, must_hold or {})
        self._saving = self._thread.submit(save)

    def fence(self) -> None:
        """Call before an update: nothing later than `begin` is saved then. On a GPU the host does not wait."""
        self._staging.fence()

    def finish(self) -> Path | None:
        """Wait for the save that is on its way. Returns the checkpoint that was saved or loaded last.

        Raises InputError with the reason, the same on all processes, where it failed. Nothing of it is left then, and
        those before it are untouched.
        """
        if self._saving is not None:
            saving, self._saving = self._saving, None
            self._saved = saving.result()
        return self._saved

    def save(self, step: int, state: dict[str, Any], export: Export) -> Path:
        """`begin` and `finish`."""
        self.begin(step, state, export)
        self.finish()
        return self._shelf.final(step)

    def last(self) -> Path | None:
        """The newest complete checkpoint, as this process sees it."""
        return self._shelf.newest()

    def agreed_last(self) -> Path | None:
        """The newest complete checkpoint, as the main process sees it."""
        self.finish()
        return self._peers.reduce(lambda: None, lambda _: self.last())

    def load(self, state: dict[str, Any], folder: Path | None = None) -> Path:
        """Fill `state` in place from a checkpoint (the newest) of any number of processes and any layout.

        Each process reads its shards only. The format is torch's own, which unpickles: load only runs that you trust.
        Returns the checkpoint. Raises InputError, the same on all processes, where there is none, where it is damaged
        (the state may be half filled then), or where names, shapes or dtypes are not those of the state.
        """
        last = self.agreed_last()
        folder = folder or last
        if folder is None:
            raise InputError(f"{self._shelf.path} has no checkpoint")
        leaves, places = flatten_state_dict(state)
        self._fill(folder, leaves)
        for name, value in leaves.items():
            if form_of(value) is None:
                set_element(state, places[name], value)
        self._saved = folder
        return folder

    # --- on the thread ---

    def _save(self, step: int, digest: dict[str, int], export: Export, must_hold: Mapping[str, Sequence[int]]) -> Path:
        final = self._shelf.final(step)
        try:
            self._peers.reduce(partial(self._check, digest), partial(self._open, step))
            self._peers.reduce(partial(self._write, step), partial(self._publish, step, export, must_hold))
        except InputError as error:
            raise InputError(f"could not save {final}: {error}; the checkpoints before it are untouched") from error
        finally:
            if self._peers.is_main:
                self._shelf.drop(step)  # after success there is nothing to drop
        return final

    def _check(self, digest: dict[str, int]) -> dict[str, int]:
        self._staging.wait()
        require_finite(self._staging.tensors())
        return digest

    def _open(self, step: int, said: list[dict[str, int]]) -> None:
        require_same(said)
        self._shelf.clear(step)

    def _write(self, step: int) -> list[WriteResult]:
        return write_shards(self._shelf.partial(step) / STATE, self._planning.plan, self._staging)

    def _publish(
        self, step: int, export: Export, must_hold: Mapping[str, Sequence[int]], written: list[list[WriteResult]]
    ) -> None:
        folder = self._shelf.partial(step)
        write_metadata(folder / STATE, self._planning.metadata, written)
        metadata = read_metadata(folder / STATE)
        require_names(metadata, self._planning.metadata, must_hold)
        require_files(folder / STATE, metadata)
        export(folder / POLICY, Reader(folder / STATE))
        self._shelf.publish(step)

    # --- loading ---

    def _fill(self, folder: Path, leaves: dict[str, Any]) -> None:
        place, asked = folder / STATE, {name: form_of(value) for name, value in leaves.items()}
        found: list[Metadata] = []
        older = self._shelf.before(folder)
        way_back = f"remove {folder} and resume from {older.name if older else 'the beginning: no other is older'}"
        with _told(f"{folder} is damaged", way_back):
            self._peers.reduce(lambda: found.append(read_metadata(place)), lambda _: require_files(place, found[0]))
        with _told(f"{folder} does not fit this run", "resume with its own recipe"):
            self._peers.reduce(lambda: asked, lambda said: require_fit(found[0], said))
        with _told(f"{folder} is damaged", way_back):
            self._peers.reduce(lambda: fill(place, found[0], leaves), lambda _: None)


@contextmanager
def _told(what: str, to_do: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{what} ({error}); {to_do}") from error
