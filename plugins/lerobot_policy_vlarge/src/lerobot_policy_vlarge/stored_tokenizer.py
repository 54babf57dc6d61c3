"""A tokenizer that is saved with the weights, so that a checkpoint needs no other file."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.data.tokens import Tokenizer, load_tokenizer, tokenizer_from_json

STORED = "stored"  # what a checkpoint's configuration says in place of a path


class StoredTokenizer(nn.Module):
    """spec: "bytes", the path of a tokenizer.json, or STORED: weights that are loaded next bring it."""

    def __init__(self, spec: str) -> None:
        super().__init__()
        self._tokenizer = None if spec == STORED else load_tokenizer(spec)

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError("no weights were loaded, and with them no tokenizer")
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """0 where it is not known yet."""
        return 0 if self._tokenizer is None else self._tokenizer.vocab_size

    def get_extra_state(self) -> Tensor:
        """JSON as uint8, which is what safetensors can hold."""
        text = "" if self._tokenizer is None else json.dumps(self._tokenizer.to_json())
        return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())

    def set_extra_state(self, state: Tensor) -> None:
        self._tokenizer = tokenizer_from_json(json.loads(state.cpu().numpy().tobytes()))
