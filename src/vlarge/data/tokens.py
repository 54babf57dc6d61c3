"""Prompts as token ids: the text prefix of π0.5 (task and state) and of π0 (task), and tokenizers that write it."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from vlarge.contracts import InputError

NUM_STATE_BINS = 256
NUMBERS_PER_DIM = NUM_STATE_BINS + 1  # below the range, the bin is -1
MAX_OWN_DIMS = 16
PIECES = re.compile(r"(Task: |, State:|;\nAction: | -?\d+(?= |;))")
NUMBER = re.compile(r" -?\d+")
PROMPTS = ("task_and_state", "task")  # of π0.5, of π0
BOS_NAMES = ("<bos>", "<s>", "<|begin_of_text|>")


class Tokenizer(Protocol):
    """Text to ids, without BOS. `to_json` is complete: `tokenizer_from_json` needs no other file."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def ordered_ids(self) -> np.ndarray:
        """int64 [runs, n]: ids that stand for ascending values, row by row. May be empty."""

    def encode(self, text: str) -> list[int]: ...

    def to_json(self) -> dict[str, Any]: ...


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then BOS, EOS, the prompt's fixed words, and numbers of the state. Needs no file.

    Each of the first `MAX_OWN_DIMS` state dimensions has numbers of its own, so that a network need not learn from
    their order which one is which; later dimensions share the last one's.
    """

    bos_id = 256
    eos_id = 257
    words: ClassVar[dict[str, int]] = {word: 258 + i for i, word in enumerate(("Task: ", ", State:", ";\nAction: "))}
    first_number_id = 258 + len(words)
    vocab_size = first_number_id + MAX_OWN_DIMS * NUMBERS_PER_DIM

    @property
    def ordered_ids(self) -> np.ndarray:
        """int64 [MAX_OWN_DIMS, NUMBERS_PER_DIM]: in each row, ids whose numbers ascend."""
        return np.arange(self.first_number_id, self.vocab_size).reshape(MAX_OWN_DIMS, NUMBERS_PER_DIM)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        dim = None  # the state dimension that the next number belongs to
        for part in PIECES.split(text):
            if part in self.words:
                ids.append(self.words[part])
                dim = 0 if part == ", State:" else None
            elif dim is not None and NUMBER.fullmatch(part) and -1 <= int(part) < NUM_STATE_BINS:
                ids.append(self.number_id(int(part), dim))
                dim += 1
            else:
                ids += part.encode()
        return ids

    def number_id(self, number: int, dim: int) -> int:
        """The id of a bin (-1 to 255) of state dimension `dim`."""
        return self.first_number_id + min(dim, MAX_OWN_DIMS - 1) * NUMBERS_PER_DIM + number + 1

    def number_ids(self, bins_TA: np.ndarray) -> np.ndarray:
        """int64 [T, A]: the ids of the bins of many states."""
        dims = np.minimum(np.arange(bins_TA.shape[1]), MAX_OWN_DIMS - 1)
        return self.first_number_id + dims * NUMBERS_PER_DIM + bins_TA + 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class JsonTokenizer:
    """A Hugging Face `tokenizer.json`, for instance PaliGemma's. Raises InputError when it cannot be read."""

    def __init__(self, path: str | Path) -> None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read tokenizer {path} ({error}); give 'bytes' or a tokenizer.json") from error
        self._load(text, str(path))

    @classmethod
    def from_text(cls, text: str) -> JsonTokenizer:
        """From the content of a tokenizer.json."""
        tokenizer = cls.__new__(cls)
        tokenizer._load(text, "stored in the checkpoint")
        return tokenizer

    def _load(self, text: str, source: str) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise InputError(f"tokenizer {source} is not a tokenizer.json: {error}") from error
        found = [i for i in map(self._tokenizer.token_to_id, BOS_NAMES) if i is not None]
        if not found:
            raise InputError(f"tokenizer {source} has no BOS token; one of {', '.join(BOS_NAMES)} is needed")
        self.bos_id: int = found[0]
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.ordered_ids = np.zeros((0, 0), np.int64)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "tokenizer.json", "content": self._tokenizer.to_str()}


def load_tokenizer(spec: str) -> Tokenizer:
    """From a recipe's `data.tokenizer`: "bytes", or the path of a tokenizer.json. Raises InputError."""
    return ByteTokenizer() if spec == "bytes" else JsonTokenizer(spec)


def tokenizer_from_json(data: dict[str, Any]) -> Tokenizer:
    """Inverse of `Tokenizer.to_json`. Raises InputError for a kind unknown here."""
    if data["kind"] == "bytes":
        return ByteTokenizer()
    if data["kind"] == "tokenizer.json":
        return JsonTokenizer.from_text(data["content"])
    raise InputError(f"tokenizer kind {data['kind']!r} is unknown; this version reads 'bytes' and 'tokenizer.json'")


_EDGES = np.linspace(-1, 1, NUM_STATE_BINS + 1)[:-1]


def _bins(state: np.ndarray) -> np.ndarray:
    # As openpi and LeRobot have it, out-of-range states included: below -1 the bin is -1, from 1 on it is 255.
    return np.digitize(state, _EDGES) - 1


def _split_prompt(task: str, state_A: np.ndarray, prompt: str) -> tuple[str, str, str]:
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    if prompt == "task":
        return "", cleaned, "\n"
    return "Task: ", cleaned, f", State: {' '.join(map(str, _bins(state_A)))};\nAction: "


def prompt_text(task: str, state_A: np.ndarray, prompt: str = PROMPTS[0]) -> str:
    """What the model reads, as openpi writes it.

    "task_and_state": the task, then every real dimension of the normalised state [A] as one of 256 bins. "task": the
    task and a line's end.
    """
    return "".join(_split_prompt(task, state_A, prompt))


def encode_prompt(
    tokenizer: Tokenizer, task: str, state_A: np.ndarray, max_tokens: int, prompt: str = PROMPTS[0]
) -> np.ndarray:
    """int64 ids of BOS and the prompt, at most `max_tokens`: a task too long loses its end, the state never does.

    Warns once when it truncates; raises InputError when not even an empty task fits.
    """
    head, cleaned, tail = _split_prompt(task, state_A, prompt)
    ids = tokenizer.encode(head + cleaned + tail)
    if len(ids) + 1 > max_tokens:
        tail_ids = tokenizer.encode(tail)
        room = max_tokens - 1 - len(tail_ids)
        if room < len(tokenizer.encode(head)):
            raise InputError(
                f"data.max_text_tokens = {max_tokens} cannot hold a state of {len(state_A)} dimensions; "
                f"give at least {len(tokenizer.encode(head)) + len(tail_ids) + 33}"
            )
        warnings.warn(f"tasks longer than data.max_text_tokens = {max_tokens} allows lose their end", stacklevel=2)
        ids = tokenizer.encode(head + cleaned)[:room] + tail_ids
    return np.array([tokenizer.bos_id, *ids], np.int64)


def encode_prompts(
    tokenizer: Tokenizer, task: str, state_TA: np.ndarray, max_tokens: int, prompt: str = PROMPTS[0]
) -> list[np.ndarray]:
    """`encode_prompt` for many states [T, A] of one task."""
    if prompt == "task" and len(state_TA):
        return [encode_prompt(tokenizer, task, state_TA[0], max_tokens, prompt)] * len(state_TA)
    if not isinstance(tokenizer, ByteTokenizer) or len(state_TA) == 0:
        return [encode_prompt(tokenizer, task, state_A, max_tokens) for state_A in state_TA]
    # One number is one token there, and they stand before the last one.
    ids_T = np.tile(_template(task, state_TA.shape[1], max_tokens), (len(state_TA), 1))
    ids_T[:, -1 - state_TA.shape[1] : -1] = tokenizer.number_ids(_bins(state_TA))
    return list(ids_T)


@lru_cache(maxsize=1024)
def _template(task: str, num_dims: int, max_tokens: int) -> np.ndarray:
    # A prompt of bytes with some state in it.
    return encode_prompt(ByteTokenizer(), task, np.zeros(num_dims, np.float32), max_tokens)
