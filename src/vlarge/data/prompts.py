"""What a model reads as text: the prompts of π0.5, π0, SmolVLA and GR00T N1.5, and their ids."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from vlarge.contracts import InputError
from vlarge.data.tokens import NUM_STATE_BINS, ByteTokenizer, Tokenizer

STATE = "{state}"
IMAGE = "<IMG_CONTEXT>"  # one for each image; the network puts the image's own tokens in its place


@dataclass(frozen=True)
class Prompt:
    """before, after: what stands around the task; `{state}` in `after` becomes the bins of the state. Where `after` is
    the end of a line, a task that has one already gets no second one.

    image: what stands before the task for each image; `{number}` counts them from 1.
    has_bos: starts with BOS, whatever the tokenizer's convention; otherwise that convention holds.
    is_cleaned: spaces around the task go, its underscores and ends of lines become spaces.
    is_listed: the task is written as Python writes a list that has it.
    tokens: what must be one token each.
    """

    before: str = ""
    after: str = ""
    image: str = ""
    has_bos: bool = False
    is_cleaned: bool = False
    is_listed: bool = False
    tokens: tuple[str, ...] = ()

    @property
    def has_state(self) -> bool:
        return STATE in self.after

    def parts(self, task: str, state_A: np.ndarray, num_images: int) -> tuple[str, str, str]:
        """The text before, of and after the task. Raises InputError for what cannot be written."""
        if self.image and IMAGE in task:
            raise InputError(f"the task {task!r} has {IMAGE}, which stands for an image: change the task")
        head = self.before + "".join(self.image.format(number=n + 1) for n in range(num_images))
        tail = self.after.replace(STATE, " ".join(map(str, _bins(state_A)))) if self.has_state else self.after
        if self.is_cleaned:
            task = task.strip().replace("_", " ").replace("\n", " ")
        if self.is_listed:
            task = str([task])
            head, task, tail = head + task[:2], task[2:-2], task[-2:] + tail
        return head, task.removesuffix("\n") if tail.startswith("\n") else task, tail


# Eagle 2.5's chat template, which writes `<image-1>` for an image, and its processor, which puts the image's 256 tokens
# there (one of them here) between marks. The processor was read in Isaac-GR00T and LeRobot 0.4.4; the template, a file
# of the model, in transformers' tests of a later Eagle, and it agrees with token counts published for N1.5. (The
# processor's own py_apply_chat_template, which neither uses, ends the system's line before <|im_end|> too.)
_CHAT = Prompt(
    before="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    image="<image {number}><img>" + IMAGE + "</img>",
    after="<|im_end|>\n<|im_start|>assistant\n",
    tokens=("<|im_start|>", "<|im_end|>", "<img>", "</img>", IMAGE),
)

PROMPTS = {
    # π0.5, as openpi and LeRobot write it: every real dimension of the normalised state as one of 256 bins.
    "task_and_state": Prompt("Task: ", ", State: {state};\nAction: ", has_bos=True, is_cleaned=True),
    # π0, as openpi writes it. LeRobot does not clean the task.
    "task": Prompt(after="\n", has_bos=True, is_cleaned=True),
    # SmolVLA, as LeRobot writes it: before it, only what the tokenizer puts before every text.
    "instruction": Prompt(after="\n"),
    # GR00T N1.5, as Isaac-GR00T trains it: of the list of tasks that a frame has, GR00TTransform takes the first.
    "chat": _CHAT,
    # GR00T N1.5, as LeRobot 0.4 trains and asks it: str([task]). For an empty task that has words of its own.
    "chat_list": replace(_CHAT, is_listed=True),
}
DEFAULT = "task_and_state"


def check_prompt(name: str, tokenizer: Tokenizer) -> None:
    """Raise InputError for an unknown prompt, and for one that this tokenizer cannot write."""
    if name not in PROMPTS:
        raise InputError(f"a preparation's prompt is {name!r}; known are {', '.join(PROMPTS)}")
    _start_ids(name, tokenizer)
    found = [tokenizer.encode(token) for token in PROMPTS[name].tokens]
    if any(len(ids) != 1 for ids in found) or len({ids[0] for ids in found}) < len(found):
        raise InputError(
            f"the prompt {name!r} needs {', '.join(PROMPTS[name].tokens)} to be tokens, and to this tokenizer they are"
            " not: set data.tokenizer to the model's own tokenizer.json"
        )


def _start_ids(name: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not PROMPTS[name].has_bos:
        return tokenizer.start_ids
    if tokenizer.bos_id is None:
        raise InputError(
            f"the prompt {name!r} starts with BOS, which this tokenizer does not have: set data.tokenizer to the"
            " model's own (PaliGemma's, for π0 and π0.5), or to 'bytes'"
        )
    return (tokenizer.bos_id,)


_EDGES = np.linspace(-1, 1, NUM_STATE_BINS + 1)[:-1]


def _bins(state: np.ndarray) -> np.ndarray:
    # As openpi and LeRobot have it, out-of-range states included: below -1 the bin is -1, from 1 on it is 255. They
    # write NaN as 255 too.
    if not np.isfinite(state).all():
        where = tuple(np.argwhere(~np.isfinite(state))[0])
        raise InputError(
            f"dimension {where[-1]} of a state is {state[where]}, which no prompt can say: check the robot"
        )
    return np.digitize(state, _EDGES) - 1


def prompt_text(task: str, state_A: np.ndarray, prompt: str = DEFAULT, num_images: int = 0) -> str:
    """What the model reads, without BOS. state_A: the normalised state. See PROMPTS."""
    return "".join(PROMPTS[prompt].parts(task, state_A, num_images))


def encode_prompt(
    tokenizer: Tokenizer, task: str, state_A: np.ndarray, max_tokens: int, prompt: str = DEFAULT, num_images: int = 0
) -> np.ndarray:
    """int64 ids of the prompt, at most `max_tokens`: a task too long loses its end, what stands around it nothing.

    Warns once when it truncates; raises InputError when not even an empty task fits.
    """
    head, written, tail = PROMPTS[prompt].parts(task, state_A, num_images)
    start = _start_ids(prompt, tokenizer)

    def ids_of(num_chars: int) -> list[int]:
        return [*start, *tokenizer.encode(head + written[:num_chars] + tail)]

    ids = ids_of(len(written))
    if len(ids) > max_tokens:
        num_chars = _longest(len(written), lambda n: len(ids_of(n)) <= max_tokens)
        if num_chars < 0:
            raise InputError(
                f"data.max_text_tokens = {max_tokens} cannot hold a state of {len(state_A)} dimensions and {num_images}"
                f" images in the prompt {prompt!r}; give at least {len(ids_of(0)) + 32}"
            )
        warnings.warn(f"tasks longer than data.max_text_tokens = {max_tokens} allows lose their end", stacklevel=2)
        ids = ids_of(num_chars)
    return np.array(ids, np.int64)


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    # The largest number up to `most` that fits; -1 for none.
    return bisect_right(range(most + 1), 0, key=lambda n: not fits(n)) - 1


def encode_prompts(
    tokenizer: Tokenizer, task: str, state_TA: np.ndarray, max_tokens: int, prompt: str = DEFAULT, num_images: int = 0
) -> list[np.ndarray]:
    """`encode_prompt` for many states [T, A] of one task."""
    if len(state_TA) and not PROMPTS[prompt].has_state:
        return [encode_prompt(tokenizer, task, state_TA[0], max_tokens, prompt, num_images)] * len(state_TA)
    if not isinstance(tokenizer, ByteTokenizer) or len(state_TA) == 0:
        return [encode_prompt(tokenizer, task, state_A, max_tokens, prompt, num_images) for state_A in state_TA]
    # One number is one token there, and they stand before the last one.
    ids_T = np.tile(_template(task, state_TA.shape[1], max_tokens, prompt, num_images), (len(state_TA), 1))
    ids_T[:, -1 - state_TA.shape[1] : -1] = tokenizer.number_ids(_bins(state_TA))
    return list(ids_T)


@lru_cache(maxsize=1024)
def _template(task: str, num_dims: int, max_tokens: int, prompt: str, num_images: int) -> np.ndarray:
    # A prompt of bytes with some state in it.
    return encode_prompt(ByteTokenizer(), task, np.zeros(num_dims, np.float32), max_tokens, prompt, num_images)


def most_tokens(
    tokenizer: Tokenizer, task: str, num_dims: int, max_tokens: int, prompt: str = DEFAULT, num_images: int = 0
) -> int:
    """An upper bound for the length of prompts of a task, whatever the state.

    It holds for tokenizers whose tokens do not reach across a space into the next number, as is usual. Raises
    InputError as `encode_prompt`.
    """
    zero_A = np.full(num_dims, -1.0, np.float32)  # bin 0 in every dimension
    most = len(_start_ids(prompt, tokenizer)) + len(tokenizer.encode(prompt_text(task, zero_A, prompt, num_images)))
    if PROMPTS[prompt].has_state and num_dims:
        inner, last = _longer_than_zero(tokenizer, prompt)
        most += inner * (num_dims - 1) + last
    if most > max_tokens:
        encode_prompt(tokenizer, task, zero_A, max_tokens, prompt, num_images)  # complains
    return min(most, max_tokens)


@lru_cache(maxsize=64)
def _longer_than_zero(tokenizer: Tokenizer, prompt: str) -> tuple[int, int]:
    # By how many tokens the longest number exceeds 0, before other numbers and as the last one.
    def excess(before: str, after: str) -> int:
        texts = (PROMPTS[prompt].after.replace(STATE, f"{before}{n}{after}") for n in range(-1, NUM_STATE_BINS))
        lengths = [len(tokenizer.encode(text)) for text in texts]
        return max(lengths) - lengths[1]

    return excess("", " 0"), excess("0 ", "")
