"""The prompt is π0.5's, to the character, and keeps its state whatever the length of the task."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from vlarge.contracts import InputError
from vlarge.data.tokens import (
    ByteTokenizer,
    JsonTokenizer,
    encode_prompt,
    encode_prompts,
    load_tokenizer,
    prompt_text,
    tokenizer_from_json,
)


@pytest.fixture
def word_file(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<bos>", "Task", ":", "push", "it", ",", "State", ";", "Action", "255", "0", "128"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $0", special_tokens=[("<bos>", 1)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_prompt_text_is_exact() -> None:
    state = np.array([-1, -0.5, 0, 0.999, 1, -1.5, 7], np.float32)
    assert prompt_text(" pick_the cup\nnow ", state) == (
        "Task: pick the cup now, State: 0 64 128 255 255 -1 255;\nAction: "
    )


def test_prompt_equals_lerobots() -> None:
    # What lerobot 0.6.1's Pi05PrepareStateTokenizerProcessorStep writes for this task and state.
    state = np.random.default_rng(0).uniform(-1.2, 1.2, 9).astype(np.float32)
    expected = "Task: open the door, State: 170 57 -1 -1 224 254 160 198 141;\nAction: "
    assert prompt_text(" open_the door\n", state) == expected


def decode(ids: np.ndarray) -> str:
    words = {number: word.encode() for word, number in ByteTokenizer.words.items()}
    numbers = {i: f" {place - 1}".encode() for row in ByteTokenizer().ordered_ids for place, i in enumerate(row)}
    known = words | numbers
    return b"".join(known.get(i) or bytes([i]) for i in ids.tolist() if i != ByteTokenizer.bos_id).decode()


def test_fixed_words_and_state_numbers_are_one_token_each_and_nothing_is_lost() -> None:
    ids = encode_prompt(ByteTokenizer(), "put 3 of 1000 on 12", np.array([-2.0, 0.0, 2.0]), 200)
    assert decode(ids) == "Task: put 3 of 1000 on 12, State: -1 128 255;\nAction: "
    assert len(ids) == len("Bput 3 of 1000 on 12") + 1 + 5


def test_each_state_dimension_has_numbers_of_its_own_up_to_the_last() -> None:
    ids = encode_prompt(ByteTokenizer(), "go", np.zeros(40), 200)[-41:-1]
    rows = [int(np.argwhere(ByteTokenizer().ordered_ids == i)[0, 0]) for i in ids]
    assert rows == [*range(16), *[15] * 24]
    assert len(set(ids.tolist())) == 16
    assert max(ids) < ByteTokenizer.vocab_size


def test_bytes_with_bos() -> None:
    ids = encode_prompt(ByteTokenizer(), "é", np.zeros(1), 200)
    assert ids.dtype == np.int64
    assert ids[0] == 256
    assert decode(ids) == "Task: é, State: 128;\nAction: "
    assert ids.max() < ByteTokenizer.vocab_size


def test_long_task_is_cut_and_state_is_kept() -> None:
    with pytest.warns(UserWarning, match="max_text_tokens = 60"):
        ids = encode_prompt(ByteTokenizer(), "word " * 100, np.zeros(3), 60)
    assert len(ids) == 60
    text = decode(ids)
    assert text.startswith("Task: word word")
    assert text.endswith(", State: 128 128 128;\nAction: ")


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


def test_json_tokenizer_adds_one_bos_and_survives_json(word_file: Path) -> None:
    tokenizer = load_tokenizer(str(word_file))
    ids = encode_prompt(tokenizer, "push_it", np.array([1.0, 0.0]), 50)
    np.testing.assert_array_equal(ids, [1, 2, 3, 4, 5, 6, 7, 3, 10, 12, 8, 9, 3])
    word_file.unlink()
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    np.testing.assert_array_equal(encode_prompt(again, "push_it", np.array([1.0, 0.0]), 50), ids)
    assert again.vocab_size == 13


def test_bad_tokenizer_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read tokenizer"):
        load_tokenizer(str(tmp_path / "absent.json"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        load_tokenizer(str(tmp_path / "bad.json"))
    with pytest.raises(InputError, match="unknown"):
        tokenizer_from_json({"kind": "pickle"})


@pytest.mark.parametrize("max_tokens", [200, 40])
@pytest.mark.parametrize(
    "task", ["pick it", "Task: , State: 3 4000;\nAction: 5, State: x", "", "a very long task " * 9]
)
def test_many_states_at_once_are_encoded_alike(task: str, max_tokens: int, word_file: Path) -> None:
    states = np.random.default_rng(0).uniform(-1.3, 1.3, (5, 19)).astype(np.float32)
    for tokenizer in (ByteTokenizer(), JsonTokenizer(word_file)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            together = encode_prompts(tokenizer, task, states, max_tokens)
            one_by_one = [encode_prompt(tokenizer, task, state, max_tokens) for state in states]
        assert [a.tolist() for a in together] == [b.tolist() for b in one_by_one]
    assert encode_prompts(ByteTokenizer(), task, states[:0], 200) == []
