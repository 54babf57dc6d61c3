"""Prompts are those of π0.5, π0, SmolVLA and GR00T N1.5 to the character, and a task too long costs nothing else."""

import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import small_tokenizers
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data.prompts import IMAGE, PROMPTS, check_prompt, encode_prompt, encode_prompts, most_tokens, prompt_text
from vlarge.data.stats import compute
from vlarge.data.tokens import ByteTokenizer, JsonTokenizer, SentencePieceTokenizer, Tokenizer
from vlarge.data.transforms import Normalizer, Preparation

NOTHING = np.zeros(0, np.float32)
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"


def paligemma() -> Tokenizer:
    return JsonTokenizer(small_tokenizers.paligemma(), "file")


def qwen() -> Tokenizer:
    return JsonTokenizer(small_tokenizers.qwen(), "file")


def smolvlm() -> Tokenizer:
    return JsonTokenizer(small_tokenizers.smolvlm(), "file")


def sentencepiece() -> Tokenizer:
    pytest.importorskip("sentencepiece")
    return SentencePieceTokenizer(small_tokenizers.sentencepiece_model(), "file")


def text_of(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """Without BOS."""
    if isinstance(tokenizer, JsonTokenizer):
        library = tokenizers.Tokenizer.from_str(tokenizer.to_json()["content"])
        return str(library.decode([i for i in ids.tolist() if i != tokenizer.bos_id], skip_special_tokens=False))
    if isinstance(tokenizer, SentencePieceTokenizer):
        return str(tokenizer._processor.decode(ids.tolist()))
    words = {number: word.encode() for word, number in ByteTokenizer.words.items()}
    numbers = {i: f" {place - 1}".encode() for row in ByteTokenizer().ordered_ids for place, i in enumerate(row)}
    known = words | numbers
    return b"".join(known.get(i) or bytes([i]) for i in ids.tolist() if i != ByteTokenizer.bos_id).decode()


def test_pi05_is_exact() -> None:
    state = np.array([-1, -0.5, 0, 0.999, 1, -1.5, 7], np.float32)
    assert prompt_text(" pick_the cup\nnow ", state) == (
        "Task: pick the cup now, State: 0 64 128 255 255 -1 255;\nAction: "
    )
    assert prompt_text("", state[:0]) == "Task: , State: ;\nAction: "


def test_pi05_equals_lerobots() -> None:
    # What lerobot 0.6.1's Pi05PrepareStateTokenizerProcessorStep writes for this task and state.
    state = np.random.default_rng(0).uniform(-1.2, 1.2, 9).astype(np.float32)
    expected = "Task: open the door, State: 170 57 -1 -1 224 254 160 198 141;\nAction: "
    assert prompt_text(" open_the door\n", state) == expected


@pytest.mark.parametrize(
    ("task", "pi0", "smolvla"),
    [
        ("go", "go\n", "go\n"),
        ("go\n", "go\n", "go\n"),
        ("", "\n", "\n"),
        ("\n", "\n", "\n"),
        (" put_it\nthere ", "put it there\n", " put_it\nthere \n"),
        ("go\n\n", "go\n", "go\n\n"),
        ("{state} 物", "{state} 物\n", "{state} 物\n"),
    ],
)
def test_pi0_and_smolvla_end_with_one_line_end(task: str, pi0: str, smolvla: str) -> None:
    assert prompt_text(task, NOTHING, "task") == pi0
    assert prompt_text(task, NOTHING, "instruction") == smolvla


def test_gr00t_is_eagles_chat() -> None:
    images = "<image 1><img><IMG_CONTEXT></img><image 2><img><IMG_CONTEXT></img>"
    end = "<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_text(" put_it there\n", NOTHING, "chat", 2) == f"{SYSTEM}{images} put_it there\n{end}"
    assert prompt_text("go", NOTHING, "chat", 0) == f"{SYSTEM}go{end}"
    for task in ("go", "it's", 'say "a"', "a\nb", "", "物", "\\"):
        assert prompt_text(task, NOTHING, "chat_list", 2) == f"{SYSTEM}{images}{[task]}{end}"


def test_gr00t_has_as_many_tokens_as_eagles_processor_gives() -> None:
    # LeRobot's processor gives 294 tokens for one picture and this task, 256 of them the picture's, from the 21st on.
    text = prompt_text("Pick up the drink and hand it to the person.", NOTHING, "chat_list", 1)
    qwens = re.findall(r"<\|im_\w+\|>|</?img>|<IMG_CONTEXT>|\['|\.'\]| ?[A-Za-z]+|.|\n", text)
    assert qwens.index(IMAGE) == 20
    assert len(qwens) - 1 + 256 == 294


@pytest.mark.parametrize("build", [paligemma, sentencepiece])
def test_pi0s_begin_with_one_bos(build: Callable[[], Tokenizer]) -> None:
    tokenizer = build()
    state = np.array([1.0, 0.0], np.float32)
    ids = encode_prompt(tokenizer, "push_it", state, 200)
    assert ids.dtype == np.int64
    assert ids.tolist() == [2, *tokenizer.encode("Task: push it, State: 255 128;\nAction: ")]
    assert encode_prompt(tokenizer, "push_it", state, 200, "task").tolist() == [2, *tokenizer.encode("push it\n")]


def test_smolvla_and_gr00t_begin_as_their_tokenizer_wants() -> None:
    for tokenizer, prompt in ((smolvlm(), "instruction"), (qwen(), "chat")):
        ids = encode_prompt(tokenizer, "go", NOTHING, 200, prompt, 2)
        assert ids.tolist() == tokenizer.encode(prompt_text("go", NOTHING, prompt, 2))
    assert encode_prompt(paligemma(), "go", NOTHING, 200, "instruction").tolist() == [2, *paligemma().encode("go\n")]


@pytest.mark.parametrize("build", [qwen, ByteTokenizer])
def test_a_chat_has_one_image_token_for_each_image(build: Callable[[], Tokenizer]) -> None:
    tokenizer = build()
    (image,) = tokenizer.encode(IMAGE)
    for num_images in range(4):
        ids = encode_prompt(tokenizer, "look at <image 1>", NOTHING, 400, "chat", num_images).tolist()
        assert ids.count(image) == num_images
    with pytest.raises(InputError, match="the task 'find <IMG_CONTEXT>' has <IMG_CONTEXT>"):
        encode_prompt(tokenizer, "find <IMG_CONTEXT>", NOTHING, 400, "chat", 1)


def test_a_prompt_that_the_tokenizer_cannot_write_is_refused() -> None:
    with pytest.raises(InputError, match=r"'task' starts with BOS, which this tokenizer does not have: set data\.tok"):
        check_prompt("task", qwen())
    with pytest.raises(InputError, match="starts with BOS"):
        encode_prompt(qwen(), "go", NOTHING, 200)
    word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    for tokenizer in (paligemma(), JsonTokenizer(word_level.to_str(), "file")):
        with pytest.raises(InputError, match=r"'chat' needs <\|im_start\|>, .* to be tokens.*set data\.tokenizer"):
            check_prompt("chat", tokenizer)
    with pytest.raises(InputError, match="'poem'; known are task_and_state, task, instruction, chat, chat_list"):
        check_prompt("poem", ByteTokenizer())
    for name in PROMPTS:
        check_prompt(name, ByteTokenizer())
    check_prompt("chat", qwen())
    check_prompt("instruction", smolvlm())
    check_prompt("task_and_state", sentencepiece())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_refused(value: float) -> None:
    states = np.zeros((3, 4), np.float32)
    states[1, 2] = value
    with pytest.raises(InputError, match=f"dimension 2 of a state is {value}"):
        prompt_text("go", states[1])
    for tokenizer in (ByteTokenizer(), paligemma()):
        with pytest.raises(InputError, match=f"dimension 2 of a state is {value}"):
            encode_prompts(tokenizer, "go", states, 200)
    assert prompt_text("go", states[1], "task") == "go\n"  # which says nothing of the state


def test_fixed_words_and_state_numbers_are_one_token_each_and_nothing_is_lost() -> None:
    ids = encode_prompt(ByteTokenizer(), "put 3 of 1000 on 12", np.array([-2.0, 0.0, 2.0]), 200)
    assert text_of(ids, ByteTokenizer()) == "Task: put 3 of 1000 on 12, State: -1 128 255;\nAction: "
    assert len(ids) == len("Bput 3 of 1000 on 12") + 1 + 5


def test_each_state_dimension_has_numbers_of_its_own_up_to_the_last() -> None:
    ids = encode_prompt(ByteTokenizer(), "go", np.zeros(40), 200)[-41:-1]
    rows = [int(np.argwhere(ByteTokenizer().ordered_ids == i)[0, 0]) for i in ids]
    assert rows == [*range(16), *[15] * 24]
    assert len(set(ids.tolist())) == 16
    assert max(ids) < ByteTokenizer.vocab_size


ENDS = {
    "task_and_state": ", State: 128 128 128;\nAction: ",
    "task": "\n",
    "instruction": "\n",
    "chat": "<|im_end|>\n<|im_start|>assistant\n",
    "chat_list": "']<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.mark.parametrize(
    ("build", "prompt"),
    [(ByteTokenizer, name) for name in PROMPTS]
    + [(paligemma, "task_and_state"), (sentencepiece, "task_and_state"), (sentencepiece, "task")]
    + [(smolvlm, "instruction"), (qwen, "chat"), (qwen, "chat_list")],
)
def test_a_long_task_loses_its_end_and_nothing_that_follows(build: Callable[[], Tokenizer], prompt: str) -> None:
    tokenizer = build()
    task, state = "go on then " * 100, np.zeros(3, np.float32)
    bare = len(encode_prompt(tokenizer, "", state, 1000, prompt, 2))
    for max_tokens in (bare, bare + 1, bare + 20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ids = encode_prompt(tokenizer, task, state, max_tokens, prompt, 2)
        assert "max_text_tokens" in str(caught[0].message)
        assert len(ids) <= max_tokens
        text = text_of(ids, tokenizer)
        assert text.endswith(ENDS[prompt])
        head = text.removesuffix(ENDS[prompt])
        assert prompt_text(task, state, prompt, 2).startswith(head)
        assert (max_tokens == bare + 20) == ("go on" in head)
    with pytest.raises(InputError, match=f"of 3 dimensions and 2 images in the prompt '{prompt}'; give at least"):
        encode_prompt(tokenizer, task, state, bare - 1, prompt, 2)


def test_a_cut_never_splits_a_letter_and_uses_the_room_there_is() -> None:
    with pytest.warns(UserWarning, match="max_text_tokens = 60"):
        ids = encode_prompt(ByteTokenizer(), "word " * 100, np.zeros(3), 60)
    assert len(ids) == 60
    for max_tokens in range(40, 44):
        with pytest.warns(UserWarning, match="lose their end"):
            ids = encode_prompt(ByteTokenizer(), "物" * 100, np.zeros(3), max_tokens)
        assert max_tokens - 3 < len(ids) <= max_tokens
        assert set(text_of(ids, ByteTokenizer()).split(", ")[0]) == set("Task: 物")


def test_cut_warns_once_under_the_default_filter() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            encode_prompt(ByteTokenizer(), "word " * 100, np.zeros(3), 61)
    assert len(caught) == 1


def test_prompt_of_exactly_the_limit_is_not_cut() -> None:
    full = encode_prompt(ByteTokenizer(), "go", np.zeros(2), 1000)
    np.testing.assert_array_equal(encode_prompt(ByteTokenizer(), "go", np.zeros(2), len(full)), full)


def test_limit_too_small_for_the_state() -> None:
    with pytest.raises(InputError, match="cannot hold a state of 60 dimensions"):
        encode_prompt(ByteTokenizer(), "go", np.zeros(60), 60)
    with pytest.raises(InputError, match="cannot hold a state of 60 dimensions"):
        most_tokens(ByteTokenizer(), "go", 60, 60)


@pytest.mark.parametrize("max_tokens", [300, 150])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    "task", ["pick it", "Task: , State: 3 4000;\nAction: 5, State: x", "", "a very long task " * 19]
)
def test_many_states_at_once_are_encoded_alike(task: str, max_tokens: int, prompt: str) -> None:
    states = np.random.default_rng(0).uniform(-1.3, 1.3, (5, 9)).astype(np.float32)
    for tokenizer in (ByteTokenizer(), qwen() if prompt.startswith("chat") else paligemma()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            together = encode_prompts(tokenizer, task, states, max_tokens, prompt, 1)
            one_by_one = [encode_prompt(tokenizer, task, state, max_tokens, prompt, 1) for state in states]
        assert [a.tolist() for a in together] == [b.tolist() for b in one_by_one]
        assert encode_prompts(tokenizer, task, states[:0], 200, prompt) == []


def lopsided() -> Tokenizer:
    """Knows some numbers as one token and spells the others, so that 255 is not the longest."""
    merges = [(" ", "2"), (" 2", "5"), (" 25", "5"), (" ", "1"), (";", "\n"), ("7", ";\n"), (" ", "9")]
    pieces = [*" -:;,0123456789\nTaskSteActionbc", *(a + b for a, b in merges), "<bos>"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return JsonTokenizer(tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges)).to_str(), "file")


TOKENIZERS = [ByteTokenizer(), paligemma(), lopsided()]


@settings(max_examples=150, deadline=None)
@given(
    tokenizer=st.sampled_from(TOKENIZERS),
    task=st.text("cab 12,;", max_size=30),
    state=st.lists(st.floats(-1.2, 1.2), max_size=6),
    max_tokens=st.integers(60, 120),
)
def test_no_state_makes_a_prompt_longer_than_expected(
    tokenizer: Tokenizer, task: str, state: list[float], max_tokens: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        most = most_tokens(tokenizer, task, len(state), max_tokens)
        assert len(encode_prompt(tokenizer, task, np.array(state), max_tokens)) <= most <= max_tokens


def test_an_observation_counts_the_images_that_are_there_and_a_dataset_all_of_them() -> None:
    normalizer = Normalizer("min_max", compute([np.random.default_rng(0).normal(size=(50, 2))]))
    preparation = Preparation(16, 4, ("a", "b"), qwen(), normalizer, normalizer, 300, prompt="chat")
    (image,) = qwen().encode(IMAGE)
    pixels = np.zeros((8, 8, 3), np.uint8)
    for images in ({}, {"b": pixels}, {"a": pixels, "b": pixels}):
        _, ids, _ = preparation.observation(images, np.zeros(2), "go")
        assert ids.tolist().count(image) == len(images)
    assert preparation.most_text_tokens("go") == len(ids)
    with pytest.raises(InputError, match="'task_and_state' starts with BOS"):
        Preparation(16, 4, ("a", "b"), qwen(), normalizer, normalizer, 300)
