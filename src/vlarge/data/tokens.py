"""Tokenizers: bytes, Hugging Face's tokenizer.json and sentencepiece models. A checkpoint carries its whole."""

from __future__ import annotations

import base64
import binascii
import re
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from vlarge.contracts import InputError

NUM_STATE_BINS = 256
NUMBERS_PER_DIM = NUM_STATE_BINS + 1  # below the range, the bin is -1
MAX_OWN_DIMS = 16
BOS_NAMES = ("<bos>", "<s>", "<|begin_of_text|>")
PICTURE = "<image>"  # after PaliGemma's last id; its embeddings end before it
MAX_FILE_BYTES = 64 << 20  # a checkpoint carries the whole file, once for each robot


class Tokenizer(Protocol):
    """Text to ids, without BOS. `to_json` is complete: `tokenizer_from_json` needs no other file."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that `encode` gives."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def start_ids(self) -> tuple[int, ...]:
        """What stands before every text by the tokenizer's own convention. Often nothing."""

    @property
    def ordered_ids(self) -> np.ndarray:
        """int64 [runs, n]: ids that stand for ascending values, row by row. May be empty."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens in it, as "<|im_start|>" is for Qwen, are one id each."""

    def to_json(self) -> dict[str, Any]: ...

    def __hash__(self) -> int: ...


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then BOS, EOS, the prompt's fixed words, and numbers of the state. Needs no file.

    Each of the first `MAX_OWN_DIMS` state dimensions has numbers of its own, so that a network need not learn from
    their order which one is which; later dimensions share the last one's. Special tokens of a chat have ids that are no
    byte of UTF-8.
    """

    bos_id = 256
    eos_id = 257
    start_ids = ()
    words: ClassVar[dict[str, int]] = {
        **{word: 258 + i for i, word in enumerate(("Task: ", ", State:", ";\nAction: "))},
        **{word: 0xF8 + i for i, word in enumerate(("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"))},
    }
    first_number_id = 261
    vocab_size = first_number_id + MAX_OWN_DIMS * NUMBERS_PER_DIM
    pieces = re.compile(f"({'|'.join(map(re.escape, words))}| -?\\d+(?= |;))")
    number = re.compile(r" -?\d+")

    @property
    def ordered_ids(self) -> np.ndarray:
        """int64 [MAX_OWN_DIMS, NUMBERS_PER_DIM]: in each row, ids whose numbers ascend."""
        return np.arange(self.first_number_id, self.vocab_size).reshape(MAX_OWN_DIMS, NUMBERS_PER_DIM)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        dim = None  # the state dimension that the next number belongs to
        for part in self.pieces.split(text):
            if part in self.words:
                ids.append(self.words[part])
                dim = 0 if part == ", State:" else None
            elif dim is not None and self.number.fullmatch(part) and -1 <= int(part) < NUM_STATE_BINS:
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
    """A Hugging Face `tokenizer.json`, for instance PaliGemma's or Qwen's.

    content: the file's. source: how messages call it. Raises InputError when it is no tokenizer.
    """

    def __init__(self, content: str, source: str) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise InputError(f"tokenizer {source} is not a tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        if not known:
            raise InputError(f"tokenizer {source} has no tokens; give another file")
        last = max(known.values())
        self.vocab_size: int = last if known.get(PICTURE) == last else last + 1
        self.bos_id: int | None = next((known[name] for name in BOS_NAMES if name in known), None)
        marked = self._tokenizer.encode("a", add_special_tokens=True)
        specials = takewhile(lambda pair: pair[1], zip(marked.ids, marked.special_tokens_mask, strict=True))
        self.start_ids: tuple[int, ...] = tuple(id_ for id_, _ in specials)
        self.ordered_ids = np.zeros((0, 0), np.int64)

    def encode(self, text: str) -> list[int]:
        ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        if max(ids, default=0) >= self.vocab_size:
            raise InputError(f"the text {text!r} has {PICTURE}, which the model has no embedding for: change the task")
        return ids

    def to_json(self) -> dict[str, Any]:
        return {"kind": "tokenizer.json", "content": self._tokenizer.to_str()}


class SentencePieceTokenizer:
    """A sentencepiece model, for instance PaliGemma's `tokenizer.model`. Needs the extra `sentencepiece`.

    model: the file's content. source: how messages call it. Raises InputError when it is no model.
    """

    start_ids = ()

    def __init__(self, model: bytes, source: str) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise InputError(f"tokenizer {source} needs sentencepiece: pip install 'vlarge[sentencepiece]'") from error
        if not model:  # it would be taken, and fail at the first text
            raise InputError(f"tokenizer {source} is empty; give a sentencepiece model")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError(f"tokenizer {source} is not a sentencepiece model: {error}") from error
        self._model = model
        self.vocab_size: int = self._processor.get_piece_size()
        bos_id = self._processor.bos_id()
        self.bos_id: int | None = None if bos_id < 0 else bos_id
        self.ordered_ids = np.zeros((0, 0), np.int64)

    def encode(self, text: str) -> list[int]:
        return list(self._processor.encode(text))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "sentencepiece", "model": base64.b64encode(self._model).decode()}


def load_tokenizer(spec: str) -> Tokenizer:
    """The one that a recipe's `data.tokenizer` names. Raises InputError.

    spec: "bytes", or the path of a tokenizer.json, of a sentencepiece model (*.model), or of a folder that has either.
    """
    if spec == "bytes":
        return ByteTokenizer()
    path = _in_folder(Path(spec).expanduser())
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MAX_FILE_BYTES:
            raise InputError(f"tokenizer {path} has {num_bytes} bytes, over {MAX_FILE_BYTES}; give a tokenizer's file")
        if path.suffix == ".model":
            return SentencePieceTokenizer(path.read_bytes(), str(path))
        return JsonTokenizer(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read tokenizer {path} ({error}); give 'bytes', a tokenizer.json or a sentencepiece *.model"
        ) from error


def _in_folder(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("tokenizer.json", "tokenizer.model"):
        if (path / name).is_file():
            return path / name
    raise InputError(
        f"the folder {path} has no tokenizer.json and no tokenizer.model; where it has vocab.json and merges.txt,"
        " transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OTHER) writes a tokenizer.json"
    )


STORED = "stored in the checkpoint"


def tokenizer_from_json(data: dict[str, Any]) -> Tokenizer:
    """Inverse of `Tokenizer.to_json`. Raises InputError for a kind unknown here, and for a damaged one."""
    if data["kind"] == "bytes":
        return ByteTokenizer()
    if data["kind"] == "tokenizer.json":
        return JsonTokenizer(data["content"], STORED)
    if data["kind"] == "sentencepiece":
        return SentencePieceTokenizer(_decoded(data["model"]), STORED)
    raise InputError(
        f"tokenizer kind {data['kind']!r} is unknown; this version reads 'bytes', 'tokenizer.json' and 'sentencepiece'"
    )


def _decoded(text: str) -> bytes:
    if len(text) > 4 * MAX_FILE_BYTES // 3 + 4:
        raise InputError(f"the tokenizer {STORED} has over {MAX_FILE_BYTES} bytes; use another checkpoint")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"the tokenizer {STORED} is damaged ({error}); use another checkpoint") from error
