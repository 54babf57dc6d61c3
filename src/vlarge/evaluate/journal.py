"""attempts.jsonl: one line per try at an episode, appended as it ends. A run that was killed resumes from it."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from vlarge.contracts import EpisodeKey, InputError
from vlarge.evaluate.episode import FAILURE, INFRA_ERROR, SUCCESS


@dataclass(frozen=True)
class Attempt:
    """One try at one episode. error: why the outcome is infra_error, else empty."""

    task: str
    init_id: int
    seed: int
    attempt: int
    outcome: str
    num_steps: int
    success_at_reset: bool | None
    error: str
    wall_s: float
    worker_pid: int

    @property
    def key(self) -> EpisodeKey:
        return EpisodeKey(self.task, self.init_id, self.seed)

    @property
    def judged(self) -> bool:
        return self.outcome in (SUCCESS, FAILURE)


class Journal:
    """Attempts so far, in memory and in the file, which one process holds at a time.

    Raises InputError when another one has it, or a line is no attempt.
    """

    def __init__(self, path: Path) -> None:
        self._attempts: dict[EpisodeKey, list[Attempt]] = {}
        self._file = path.open("ab")
        try:
            self._file.truncate(self._read(path))
        except InputError:
            self._file.close()
            raise

    def _read(self, path: Path) -> int:
        """Note the attempts there are; returns how many bytes of the file they take."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another evaluation is writing to {path.parent}; wait for it, or choose another output folder"
            ) from None
        good_bytes = 0
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # the line that was being written when the run was killed
            self._note(_parse(line, path))
            good_bytes += len(line)
        return good_bytes

    @property
    def empty(self) -> bool:
        return not self._attempts

    def append(self, attempt: Attempt) -> None:
        self._file.write(json.dumps(asdict(attempt)).encode() + b"\n")
        self._file.flush()
        self._note(attempt)

    def num_attempts(self, key: EpisodeKey) -> int:
        return len(self._attempts.get(key, ()))

    def final(self, key: EpisodeKey, max_attempts: int) -> Attempt | None:
        """The attempt that settles the episode: the one judged, or the last one allowed. None while it is open."""
        attempts = self._attempts.get(key, [])
        for attempt in attempts:
            if attempt.judged:
                return attempt
        return attempts[-1] if len(attempts) >= max_attempts else None

    def close(self) -> None:
        self._file.close()

    def _note(self, attempt: Attempt) -> None:
        self._attempts.setdefault(attempt.key, []).append(attempt)


def episode_line(attempt: Attempt) -> dict[str, object]:
    """What of the settling attempt the key decides: a line of episodes.jsonl."""
    judged = attempt.judged
    return {
        "task": attempt.task,
        "init_id": attempt.init_id,
        "seed": attempt.seed,
        "outcome": attempt.outcome if judged else INFRA_ERROR,
        "num_steps": attempt.num_steps if judged else None,
        "success_at_reset": attempt.success_at_reset if judged else None,
    }


def _parse(line: bytes, path: Path) -> Attempt:
    try:
        return Attempt(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} has a line that is no attempt ({error}); choose another output folder") from error
