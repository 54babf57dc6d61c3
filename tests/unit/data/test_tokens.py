"""Tokenizers give the ids of the libraries that they stand for, and a checkpoint carries them whole."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_tokenizers
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import InputError
from vlarge.data import tokens
from vlarge.data.tokens import (
    ByteTokenizer,
    JsonTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenizer_from_json,
)

TEXTS = [
    "", " ", "\n", "pick_up the  cup\n\n", "Task: go, State: 0 -1 255;\nAction: ", "物体を置く 🤖 à gauche\ttab",
    "<|im_start|>user\n<image 1><img><IMG_CONTEXT></img>go<|im_end|>\n", "<bos>1234", "can't <0x0A>",
]  # fmt: skip


def through_json(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))


@pytest.mark.parametrize("build", [small_tokenizers.paligemma, small_tokenizers.qwen, small_tokenizers.smolvlm])
def test_json_tokenizer_gives_the_librarys_ids_and_survives_a_checkpoint(build) -> None:  # type: ignore[no-untyped-def]
    theirs = tokenizers.Tokenizer.from_str(build())
    ours = JsonTokenizer(build(), "file")
    again = through_json(ours)
    for text in TEXTS:
        assert ours.encode(text) == again.encode(text) == theirs.encode(text, add_special_tokens=False).ids
        assert max(ours.encode(text), default=0) < ours.vocab_size
    assert (again.vocab_size, again.bos_id, again.start_ids) == (ours.vocab_size, ours.bos_id, ours.start_ids)


def test_bos_and_vocabulary_of_each_kind() -> None:
    paligemma = JsonTokenizer(small_tokenizers.paligemma(), "file")
    assert (paligemma.bos_id, paligemma.start_ids) == (2, (2,))
    # PaliGemma's <image> is an id more than the model has embeddings.
    library = tokenizers.Tokenizer.from_str(small_tokenizers.paligemma())
    assert paligemma.vocab_size == library.token_to_id("<image>") == library.get_vocab_size() - 1
    qwen = JsonTokenizer(small_tokenizers.qwen(), "file")
    assert (qwen.bos_id, qwen.start_ids) == (None, ())
    library = tokenizers.Tokenizer.from_str(small_tokenizers.qwen())
    assert qwen.vocab_size == library.get_vocab_size(with_added_tokens=True)
    assert qwen.vocab_size == library.get_vocab_size(with_added_tokens=False) + 6
    # SmolVLM2's has an <image> that is the last id too; no prompt of ours writes it.
    assert JsonTokenizer(small_tokenizers.smolvlm(), "file").bos_id is None


def test_a_vocabulary_with_gaps_counts_up_to_its_largest_id() -> None:
    model = tokenizers.models.WordLevel({"<unk>": 0, "go": 9}, unk_token="<unk>")
    assert JsonTokenizer(tokenizers.Tokenizer(model).to_str(), "file").vocab_size == 10


def test_a_text_with_the_token_that_has_no_embedding_is_refused() -> None:
    tokenizer = JsonTokenizer(small_tokenizers.paligemma(), "file")
    with pytest.raises(InputError, match=r"the text 'look at <image>' has <image>.* change the task"):
        tokenizer.encode("look at <image>")


def test_special_tokens_are_one_id_each() -> None:
    for tokenizer in (JsonTokenizer(small_tokenizers.qwen(), "file"), ByteTokenizer()):
        found = [tokenizer.encode(token) for token in small_tokenizers.CHAT_TOKENS]
        assert all(len(ids) == 1 for ids in found)
        assert len({ids[0] for ids in found}) == len(found)
        assert tokenizer.encode("a<img>b") == [*tokenizer.encode("a"), *found[2], *tokenizer.encode("b")]


def test_what_a_file_says_of_cutting_and_filling_is_ignored() -> None:
    plain, filling = (
        JsonTokenizer(c, "file") for c in (small_tokenizers.qwen(), small_tokenizers.padding(small_tokenizers.qwen()))
    )
    text = "open the door then close it slowly"
    assert filling.encode(text) == plain.encode(text)
    assert through_json(filling).encode(text) == plain.encode(text)


WORDS = {number: word.encode() for word, number in ByteTokenizer.words.items()}
NUMBERS = {i: f" {place - 1}".encode() for row in ByteTokenizer().ordered_ids for place, i in enumerate(row)}
PARTS = st.text() | st.sampled_from([*ByteTokenizer.words, " 0", " 255", " 256", " -1", ";", " "])


@settings(max_examples=200, deadline=None)
@given(st.lists(PARTS, max_size=8).map("".join))
def test_bytes_are_lossless_and_stay_below_the_vocabulary(text: str) -> None:
    ids = ByteTokenizer().encode(text)
    assert b"".join((WORDS.get(i) or NUMBERS.get(i) or bytes([i])) for i in ids).decode() == text
    assert max(ids, default=0) < ByteTokenizer.vocab_size == 4373


def test_no_byte_of_utf8_is_a_special_token() -> None:
    marks = {ByteTokenizer.words[token] for token in small_tokenizers.CHAT_TOKENS}
    assert not marks & {byte for n in (*range(0xD800), *range(0xE000, 0x110000, 7)) for byte in chr(n).encode()}


def test_sentencepiece_gives_the_librarys_ids_and_survives_a_checkpoint(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = small_tokenizers.sentencepiece_model()
    path = tmp_path / "paligemma_tokenizer.model"
    path.write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = load_tokenizer(str(path))
    path.unlink()
    again = through_json(ours)
    for text in TEXTS:
        assert ours.encode(text) == again.encode(text) == theirs.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert (again.bos_id, again.start_ids, again.vocab_size) == (2, (), theirs.get_piece_size())
    assert SentencePieceTokenizer(small_tokenizers.sentencepiece_model(bos_id=-1), "file").bos_id is None


def test_sentencepiece_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    for content, message in ((b"", "is empty"), (b'{"a": 1}', "is not a sentencepiece model")):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(InputError, match=rf"bad\.model {message}"):
            load_tokenizer(str(tmp_path / "bad.model"))
    with pytest.raises(InputError, match=r"stored in the checkpoint is damaged"):
        tokenizer_from_json({"kind": "sentencepiece", "model": "no base64!"})
    with pytest.raises(InputError, match=r"stored in the checkpoint is not a sentencepiece model"):
        tokenizer_from_json({"kind": "sentencepiece", "model": base64.b64encode(b"\x00" * 99).decode()})


def test_sentencepiece_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(InputError, match=r"pip install 'vlarge\[sentencepiece\]'"):
        SentencePieceTokenizer(b"model", "file")


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_FILE_BYTES", 100)
    (tmp_path / "tokenizer.json").write_bytes(bytes(101))
    with pytest.raises(InputError, match="has 101 bytes, over 100"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(InputError, match="has over 100 bytes"):
        tokenizer_from_json({"kind": "sentencepiece", "model": "A" * 138})


def test_a_folder_stands_for_the_tokenizer_in_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer\.json and no tokenizer\.model.*save_pretrained"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(small_tokenizers.qwen(), encoding="utf-8")
    assert load_tokenizer(str(tmp_path)).encode("go on") == JsonTokenizer(small_tokenizers.qwen(), "").encode("go on")


def test_bad_tokenizer_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read tokenizer .*give 'bytes', a tokenizer\.json or a sentencepiece"):
        load_tokenizer(str(tmp_path / "absent.json"))
    for content in ("{}", "[]", "not json"):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(InputError, match=r"bad\.json is not a tokenizer\.json"):
            load_tokenizer(str(tmp_path / "bad.json"))
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read tokenizer"):
        load_tokenizer(str(tmp_path / "bad.json"))
    (tmp_path / "empty.json").write_text(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    with pytest.raises(InputError, match="has no tokens"):
        load_tokenizer(str(tmp_path / "empty.json"))
    with pytest.raises(InputError, match="'pickle' is unknown"):
        tokenizer_from_json({"kind": "pickle"})


def test_importing_needs_no_tokenizer_library() -> None:
    code = "import sys, vlarge.data.prompts; assert not {'tokenizers', 'sentencepiece'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
