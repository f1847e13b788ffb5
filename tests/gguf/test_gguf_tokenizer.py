"""Tokenizers rebuilt from GGUF metadata give the ids of those that they were written from."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from helpers import failure
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.gguf.metadata import Metadata
from sterna.gguf.vocabulary import Vocabulary
from sterna.tokenizer import Detokenizer, Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'll say THEY'VE won.",
    "def f(x):\n    return {'a': [1, 22, 333, 4444, 55555]}\n\n\n\tpass  # naïve café größe",
    "日本語 と 漢字、한국어도. Привет, мир! ¿Qué tal? 3.14159 × 10⁻³ — “quoted”… №42",
    "HTTPServer camelCase snake_case SCREAMING  double  spaces\r\n\r\nCRLF",
] * 3
TRICKY = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n \n", "\t\ttabs", "\r\n", "a\r\nb",
    "Hello, world!", " Hello", "hello  world", "I'm you'RE we'Ve it'S o'clock 'tis",
    "1", "12", "123", "1234", "12345678901", "3.14", "x2y", "v1.2.3", "²³½Ⅷ①",
    "naïve café größe", "e\u0301a\u0308 é", "日本語と漢字", "한국어", "Привет", "ไทย", "हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🙂", "\u00a0nbsp\u2003em\u3000ideographic", "\u200bzero\u200d", "\x00\x01\x7f",
    "{}[]()<>!@#$%^&*", "a/b//c/", "...///\n\nfoo", "__init__", "camelCaseHTTPServer ÉCOLE",
    "<s>begin</s>", "a<tool>b", "x <tool> y", "<|im_start|>user\nhi<|im_end|>", "▁under▁score",
    "<0x41> <0x0A>", "\ufffd", "a" * 300, " " * 70,
]  # fmt: skip

# The rules of the published tokenizer.json files of each family.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def cutter(family: str) -> pre_tokenizers.PreTokenizer:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitting = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if family == "gpt-2":
        return splitting
    if family == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), splitting])
    cut = {
        "llama-bpe": LLAMA3, "falcon3": LLAMA3, "glm4": LLAMA3, "qwen2": QWEN2, "tekken": TEKKEN,
        "gpt-4o": GPT4O, "bloom": BLOOM,
    }[family]  # fmt: skip
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated"), level])


def byte_level(family: str) -> tokenizers.Tokenizer:
    """A small tokenizer of a family, trained here."""
    whole = family in ("llama-bpe", "falcon3", "glm4", "tekken")
    built = tokenizers.Tokenizer(models.BPE(ignore_merges=whole))
    if family == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = cutter(family)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    built.train_from_iterator(CORPUS, trainer)
    built.add_special_tokens(SPECIAL)
    built.add_tokens([AddedToken("<tool>", normalized=False)])
    return built


def metadata_of(built: tokenizers.Tokenizer, **values: Any) -> Metadata:
    """The metadata that a converter writes for a tokenizer."""
    vocab = built.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    state = json.loads(built.to_str())
    added = {t["id"]: 3 if t["special"] else 4 for t in state["added_tokens"]}
    types = [added.get(i, 1) for i in range(len(tokens))]
    fields: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [" ".join(m) for m in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<s>"],
        "tokenizer.ggml.eos_token_id": vocab["</s>"],
        "tokenizer.ggml.add_bos_token": False,
        **values,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    return Metadata(Path("x.gguf"), present, {})


@pytest.mark.parametrize(
    "family",
    ["llama-bpe", "falcon3", "glm4", "qwen2", "tekken", "gpt-4o", "gpt-2", "smollm", "bloom"],
)
def test_byte_level(family: str) -> None:
    """Every family cuts text as its published tokenizer does, and puts it together again."""
    built = byte_level(family)
    rebuilt = Vocabulary(metadata_of(built, **{"tokenizer.ggml.pre": family})).backend
    texts = [*TRICKY, *CORPUS, *random_texts(200)]
    for text in texts:
        expected = built.encode(text)
        got = rebuilt.encode(text)
        assert got.ids == expected.ids, repr(text)
        assert rebuilt.decode(got.ids, skip_special_tokens=False) == built.decode(
            expected.ids, skip_special_tokens=False
        )
        if "<" not in text:
            plain = unicodedata.normalize("NFC", text) if family == "qwen2" else text
            assert rebuilt.decode(got.ids) == plain


def test_families_differ() -> None:
    """Else the test above could not tell them apart."""
    cuts = {
        family: str([cutter(family).pre_tokenize_str(text) for text in TRICKY if text])
        for family in ("llama-bpe", "qwen2", "tekken", "gpt-4o", "gpt-2", "smollm")
    }
    assert len(set(cuts.values())) == len(cuts)


def random_texts(count: int) -> list[str]:
    rng = random.Random(5)
    alphabet = "aAbé日🙂 \n\t1.'/<_-ё한\u0301"
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 30))) for _ in range(count)]


# ------------------------------------------------------------------------------ SentencePiece


def pieces() -> tuple[list[str], list[float], list[int]]:
    """(tokens, scores, types) of a vocabulary like Llama 2's, from merges trained here."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.train_from_iterator(
        ["▁" + text.replace(" ", "▁") for text in CORPUS],
        trainers.BpeTrainer(vocab_size=330, show_progress=False),
    )
    merges = [a + b for a, b in json.loads(trained.to_str())["model"]["merges"]]
    letters = sorted(t for t in trained.get_vocab() if len(t) == 1 and t not in "日x")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [2, 3, 3] + [6] * 256
    scores = [0.0] * len(tokens)
    # A character that is no token is in no longer one either
    merged = list(dict.fromkeys(m for m in merges if not {"x", "日"} & {*m} and m not in letters))
    for rank, token in enumerate([*merged, *letters]):
        tokens.append(token)
        scores.append(-float(rank))
        types.append(1)
    tokens += ["<tool>", "<|im_end|>"]
    return tokens, [*scores, 0.0, 0.0], [*types, 4, 3]


def by_scores(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """SentencePiece's BPE, written out: of all neighbours whose joined text is a token, those of
    the highest score merge, the leftmost first; what is no token becomes bytes."""
    ids = {token: i for i, token in enumerate(tokens)}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[ids[a + b]], i)
            for i, (a, b) in enumerate(itertools.pairwise(symbols))
            if a + b in ids
        ]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    token_ids = []
    for symbol in symbols:
        if symbol in ids:
            token_ids.append(ids[symbol])
        else:
            token_ids += [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
    return token_ids


def spm_metadata(**values: Any) -> Metadata:
    tokens, scores, types = pieces()
    fields: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **values,
    }
    return Metadata(Path("x.gguf"), fields, {})


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool) -> None:
    """Scores decide as SentencePiece has them, bytes stand for what is no token."""
    tokens, scores, _ = pieces()
    vocabulary = Vocabulary(spm_metadata(**{"tokenizer.ggml.add_space_prefix": prefix}))
    plain = [t for t in [*TRICKY, *CORPUS, *random_texts(150)] if "<" not in t]
    for text in plain:
        expected = by_scores(" " * prefix + text if text else "", tokens, scores)
        assert vocabulary.backend.encode(text).ids == [1, *expected], repr(text)
        assert vocabulary.backend.decode(expected) == text.replace("▁", " ")
    bytes_ = vocabulary.backend.encode("日", add_special_tokens=False).ids
    assert [tokens[i] for i in bytes_][-3:] == ["<0xE6>", "<0x97>", "<0xA5>"]
    spelt = vocabulary.backend.encode("a<tool>b<|im_end|></s>").tokens
    assert [t for t in spelt if t[0] == "<"] == ["<s>", "<tool>", "<|im_end|>", "</s>"]


def test_sentencepiece_is_llamas() -> None:
    """The ids are those of transformers' own way of writing a Llama tokenizer."""
    tokens, scores, _ = pieces()
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token in sorted(tokens, key=lambda t: -scores[ids[t]]):
        merges += [
            (token[:i], token[i:])
            for i in range(1, len(token))
            if token[:i] in ids and token[i:] in ids
        ]
    built = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    built.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    built.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_end|>"])
    built.add_tokens([AddedToken("<tool>", normalized=False)])
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    rebuilt = Vocabulary(spm_metadata()).backend
    for text in [*TRICKY, *CORPUS, *random_texts(150)]:
        assert rebuilt.encode(text).ids == built.encode(text).ids, repr(text)


# ---------------------------------------------------------------------------- around the tokens


def test_what_stands_around_a_text() -> None:
    """BOS and EOS as the file says, and where it does not, as the family does."""
    built = byte_level("llama-bpe")
    bos, eos = built.token_to_id("<s>"), built.token_to_id("</s>")

    def around(pre: str, **values: Any) -> list[int]:
        named = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
        data = metadata_of(built, **{"tokenizer.ggml.pre": pre, **named})
        ids = Vocabulary(data).backend.encode("a").ids
        return [i for i in ids if i in (bos, eos)]

    assert around("llama-bpe", add_bos_token=None) == [bos]
    assert around("llama-bpe", add_bos_token=False) == []
    assert around("gpt-2", add_bos_token=None) == []
    assert around("gpt-2", add_bos_token=True, add_eos_token=True) == [bos, eos]
    assert around("llama-bpe", add_bos_token=None, bos_token_id=None) == []


def test_ends_of_a_text() -> None:
    """The tokens that the file names end a text, and control tokens known to end a turn."""
    built = byte_level("qwen2")
    data = {"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.eot_token_id": 5}
    ends = Vocabulary(metadata_of(built, **data)).eos_ids
    assert ends == (5, built.token_to_id("</s>"), built.token_to_id("<|im_end|>"))


def test_sentencepieces_own_tokens_need_no_keys() -> None:
    """As in llama.cpp; a vocabulary with other words at their places has none."""
    for spelling, bos in (("<s>", 1), ("<start>", None)):
        metadata = spm_metadata()
        values = {k: v for k, v in metadata._values.items() if not k.endswith("_token_id")}
        tokens = [spelling if t == "<s>" else t for t in metadata.texts("tokenizer.ggml.tokens")]
        found = Vocabulary(
            Metadata(Path("x.gguf"), {**values, "tokenizer.ggml.tokens": tokens}, {})
        )
        assert (found.bos_id, found.eos_ids) == (bos, (2, tokens.index("<|im_end|>")))
        assert found.backend.encode("a").ids[: 1 if bos else 0] == [1] * bool(bos)


def test_tokens_without_a_spelling() -> None:
    """There may be several, and no text has them."""
    tokens, scores, types = pieces()
    data = spm_metadata(
        **{
            "tokenizer.ggml.tokens": ["", *tokens[1:], ""],
            "tokenizer.ggml.scores": np.array([*scores, 0.0], np.float32),
            "tokenizer.ggml.token_type": np.array([*types, 3], np.int32),
            "tokenizer.ggml.unknown_token_id": 2**32 - 1,
        }
    )
    backend = Vocabulary(data).backend
    tokenizer = Tokenizer.from_parts(Path("x.gguf"), backend, {}, [])
    assert tokenizer.decode([0, len(tokens)]) == ""
    assert backend.encode("naïve").ids == Vocabulary(spm_metadata()).backend.encode("naïve").ids


def test_an_end_of_one_family_is_none_in_another() -> None:
    """<|end|> ends Phi-3's turns, and a message in gpt-oss; alone it ends nothing."""
    built = byte_level("gpt-4o")
    built.add_special_tokens(["<|end|>"])
    harmony = ["<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"]
    for marks, ends in (
        ([], []),
        (["<|user|>", "<|assistant|>"], ["<|end|>"]),
        (harmony, ["<|return|>", "<|call|>"]),
    ):
        family = tokenizers.Tokenizer.from_str(built.to_str())
        family.add_special_tokens(marks)
        data = metadata_of(family, **{"tokenizer.ggml.pre": "gpt-4o"})
        found = {family.id_to_token(i) for i in Vocabulary(data).eos_ids}
        assert found == {"</s>", "<|im_end|>", *ends}


def test_text_token_by_token() -> None:
    """The class that generation uses streams the same text from both families."""
    for metadata in (
        spm_metadata(),
        metadata_of(byte_level("qwen2"), **{"tokenizer.ggml.pre": "qwen2"}),
    ):
        backend = Vocabulary(metadata).backend
        tokenizer = Tokenizer.from_parts(Path("x.gguf"), backend, {}, [])
        for text in ("naïve 日本語 🙂", "def f(x):\n    return 1", " a  b"):
            stream = Detokenizer(tokenizer)
            pieces = [stream.push(id) for id in tokenizer.encode(text)]
            assert "".join([*pieces, stream.flush()]) == text


def test_a_file_that_does_not_say_how_text_is_cut() -> None:
    """Guessed aloud, but for BitNet's files, which are known to lack the key."""
    built = byte_level("llama-bpe")
    with pytest.warns(RuntimeWarning, match=r"tokenizer\.ggml\.pre"):
        assert Vocabulary(metadata_of(built)).pre == "gpt-2"
    bitnet = {"general.architecture": "bitnet-b1.58"}
    assert Vocabulary(metadata_of(built, **bitnet)).pre == "llama-bpe"


SPOILT: list[tuple[str, Any, str]] = [
    ("tokens", [], "1 to"),
    ("tokens", "abc", "a string"),
    ("token_type", np.ones(3, np.int32), "numbers"),
    ("merges", ["a b", "ab"], "two tokens"),
    ("merges", ["zz qq"], "error"),
    ("bos_token_id", 100_000, "an id below"),
    ("bos_token_id", "1", "a string"),
    ("add_bos_token", 1, "a boolean"),
]


@pytest.mark.parametrize("case", range(len(SPOILT)))
def test_spoilt_metadata(case: int) -> None:
    """The key is named; the library's own errors and panics are ours."""
    key, value, word = SPOILT[case]
    data = metadata_of(byte_level("gpt-2"), **{"tokenizer.ggml.pre": "gpt-2"})
    spoilt = Metadata(Path("x.gguf"), {**data._values, f"tokenizer.ggml.{key}": value}, {})
    failure(lambda: Vocabulary(spoilt), ModelFormatError, "x.gguf", word)


def test_tokenizers_that_do_not_run() -> None:
    """Other kinds, and unknown ways of cutting text, are not guessed at."""
    built = byte_level("gpt-2")
    for key, value in (("model", "plamo2"), ("model", "rwkv"), ("pre", "chameleon")):
        data = metadata_of(built, **{f"tokenizer.ggml.{key}": value})
        failure(lambda d=data: Vocabulary(d), UnsupportedModelError, "x.gguf", value)
    scores = spm_metadata(**{"tokenizer.ggml.scores": np.full(len(pieces()[0]), np.nan)})
    failure(lambda: Vocabulary(scores), ModelFormatError, "scores", "NaN")


def test_a_piece_without_end_is_not_cut() -> None:
    """Merges of long pieces would take quadratic time."""
    tokens, scores, types = pieces()
    data = spm_metadata(
        **{
            "tokenizer.ggml.tokens": [*tokens, "a" * 100_000],
            "tokenizer.ggml.scores": np.array([*scores, -1.0], np.float32),
            "tokenizer.ggml.token_type": np.array([*types, 1], np.int32),
        }
    )
    assert Vocabulary(data).backend.encode("aaa").ids
