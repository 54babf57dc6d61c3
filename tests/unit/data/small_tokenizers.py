"""Small tokenizers built as the published ones are, for tests: PaliGemma's, Qwen's and SmolVLM2's."""

import io
import json
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "Task: pick up the red_cup and place it, State: 0 12 255 -1 128;\nAction: ",
    "open the door\nthen close it  slowly",
    "Déplace l'objet à gauche; 物体を置く 🤖",
    "<|im_start|>user\n<image 1>['go on']<|im_end|>\n",
    *(f"State: {n};" for n in range(-1, 256)),
]
CHAT_TOKENS = ["<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]


@cache
def paligemma() -> str:
    """A tokenizer.json: BPE with byte fallback, spaces as ▁, single digits, BOS in front, <image> as the last id."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    digits_apart = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits_apart, pre_tokenizers.Split("▁", "merged_with_next")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*special, *(f"<0x{b:02X}>" for b in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $0", special_tokens=[("<bos>", 2)])
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False, special=True)])
    return str(tokenizer.to_str())


@cache
def byte_level(special: tuple[str, ...]) -> str:
    """A tokenizer.json: byte-level BPE with these special tokens after the others, and no BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return str(tokenizer.to_str())


def qwen() -> str:
    return byte_level(("<|endoftext|>", *CHAT_TOKENS))


def smolvlm() -> str:
    return byte_level(("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>"))


def padding(content: str) -> str:
    """The same tokenizer.json as some are saved: it cuts texts to 6 tokens and fills them up to 20."""
    data = json.loads(content)
    data["truncation"] = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    return json.dumps(data)


def sentencepiece_model(**options: object) -> bytes:
    """A model like PaliGemma's: unchanged text, no space in front, single digits, ends of lines as pieces."""
    import sentencepiece

    model = io.BytesIO()
    settings: dict = {
        "vocab_size": 420, "model_type": "unigram", "byte_fallback": True, "split_digits": True,
        "add_dummy_prefix": False, "remove_extra_whitespaces": False, "normalization_rule_name": "identity",
        "user_defined_symbols": ["\n"], "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "minloglevel": 2,
        "hard_vocab_limit": False, "num_threads": 1,
    }  # fmt: skip
    sentences = iter([sentence.replace("\n", " ") for sentence in SENTENCES])
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=model, **(settings | options))
    return model.getvalue()
