"""attempts.jsonl: one line per try at an episode, appended as it ends. A run that was killed resumes from it."""

from __future__ import annotations

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
    """Attempts so far, in memory and in the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._attempts: dict[EpisodeKey, list[Attempt]] = {}
        good_bytes = 0
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if not line.endswith(b"\n"):
                break  # the line that was being written when the run was killed
            self._note(_parse(line, path))
            good_bytes += len(line)
        self._file = path.open("ab")
        self._file.truncate(good_bytes)

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
