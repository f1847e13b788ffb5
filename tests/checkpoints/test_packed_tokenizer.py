"""A packed tokenizer gives what the library gives: ids, offsets, kinds, tokens, texts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from sterna import _native
from sterna.checkpoints.assets import FolderAssets
from sterna.checkpoints.packed_tokenizer import (
    PACKED,
    PackedBackend,
    pack_tokenizer,
    read_packed_tokenizer,
)
from sterna.errors import ModelFormatError, RequestError
from sterna.tokenizer import Tokenizer, special_ids

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "def f(x):\n    return [x * 2 for _ in range(10)]\n",
    "Züge fahren über Flüsse; naïve façades. 日本語の文字列と漢字。 Поезд едет. 🙂🙂",
]
MARK = "<|end|>"
FOLDERS = TemporaryDirectory()  # of packed forms that many tests ask


def with_marks(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Adds a token behind the vocabulary, one that is a word, and what surrounds a text."""
    backend.add_special_tokens([MARK])
    backend.add_tokens([tokenizers.AddedToken("dog", normalized=True, lstrip=True)])
    end = backend.token_to_id(MARK)
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {MARK}", pair=f"$A {MARK} $B:1 {MARK}:1", special_tokens=[(MARK, end)]
    )
    return backend


def byte_level(**options: Any) -> tokenizers.Tokenizer:
    """BPE of bytes, as GPT-2."""
    backend = tokenizers.Tokenizer(models.BPE(**options))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend = with_marks(backend)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)  # which reads tokens
    return backend


def sentence_pieces(
    fallback: bool = True, unknown: str | None = "<unk>", **options: Any
) -> tokenizers.Tokenizer:
    """BPE of whole texts, as Gemma's and Llama's."""
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256) if fallback or b != 0xE6)]
    words = [*"▁abcdefghilmnoprstuw", "th", "▁th", "▁the", "er", "an", "nd", "and", "▁a", "▁and"]
    pairs = [("t", "h"), ("▁", "th"), ("▁th", "e"), ("e", "r"), ("a", "n"), ("n", "d")]
    pairs += [("an", "d"), ("a", "nd"), ("▁", "a"), ("▁a", "nd"), ("▁", "and")]
    vocab = {token: id for id, token in enumerate([*tokens, *words, "▁▁"])}
    model = models.BPE(
        vocab, [*pairs, ("▁", "▁")], unk_token=unknown, byte_fallback=True, **options
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_marks(backend)


def word_pieces() -> tokenizers.Tokenizer:
    """BERT's."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]"], show_progress=False
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    return with_marks(backend)


def unigram(fallback: bool = False) -> tokenizers.Tokenizer:
    """XLM-RoBERTa's. Many scores are alike, so that ties count."""
    pieces = [
        "<unk>",
        "▁",
        *"abcdeinorstu",
        "▁the",
        "the",
        "he",
        "er",
        "in",
        "ing",
        "日本",
        "▁日本",
    ]
    pieces += [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    scores = [(piece, -float(len(piece) % 3)) for piece in pieces]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return with_marks(backend)


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "bytes": byte_level,
    "whole words": lambda: byte_level(ignore_merges=True),
    "pieces": sentence_pieces,
    "some bytes, unknown fused": lambda: sentence_pieces(False, fuse_unk=True),
    "some bytes, each unknown": lambda: sentence_pieces(False),
    "some bytes, unknown left out": lambda: sentence_pieces(False, None),
    "word pieces": word_pieces,
    "unigram": unigram,
    "unigram with bytes": lambda: unigram(True),
}
SETTINGS: dict[str, Any] = {"eos_token": MARK, "chat_template": "x"}


def saved(backend: tokenizers.Tokenizer) -> Path:
    folder = Path(mkdtemp(dir=FOLDERS.name))
    backend.save(str(folder / "tokenizer.json"))
    return folder


def opened(folder: Path, backend: tokenizers.Tokenizer) -> PackedBackend | None:
    return read_packed_tokenizer(folder, SETTINGS, False, lambda: backend)


@cache
def pair(kind: str) -> tuple[tokenizers.Tokenizer, PackedBackend]:
    """The library's, and its packed form."""
    backend = KINDS[kind]()
    folder = saved(backend)
    pack_tokenizer(folder, backend, SETTINGS, False)
    packed = opened(folder, backend)
    assert packed is not None
    return backend, packed


def encoded(backend: Any, *texts: str) -> tuple[Any, ...]:
    made = backend.encode(*texts)
    return made.ids, made.offsets, made.type_ids, made.sequence_ids


def strings(count: int) -> list[str]:
    rng = random.Random(5)
    pieces = [
        *"the and ing 日本 \n\t.,é🙂",
        *" the,and,ing,  ,   ,aaaa,ä,x,0,1,dog,▁".split(","),
        MARK,
    ]
    pieces += ["the", "nd", "er", "<0x41>", "\u0301", "\u200d", "thethe", "andand", "~", "æ", "憂"]
    return ["", *("".join(rng.choices(pieces, k=rng.randint(1, 25))) for _ in range(count))]


@pytest.mark.parametrize("kind", KINDS)
def test_1000_strings(kind: str) -> None:
    backend, packed = pair(kind)
    for text in (*TEXTS, *strings(1000)):
        assert encoded(packed, text) == encoded(backend, text), repr(text)
        ids = packed.encode(text, add_special_tokens=False).ids
        assert ids == backend.encode(text, add_special_tokens=False).ids
        shown = backend.decode(ids, skip_special_tokens=False)
        assert packed.decode(ids, skip_special_tokens=False) == shown
    for first, second in zip(strings(50), strings(90), strict=False):
        assert encoded(packed, first, second) == encoded(backend, first, second)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text())
def test_any_text(kind: str, text: str) -> None:
    backend, packed = pair(kind)
    assert encoded(packed, text) == encoded(backend, text)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_ids(kind: str) -> None:
    backend, packed = pair(kind)
    for with_added in (False, True):
        assert packed.get_vocab_size(with_added) == backend.get_vocab_size(with_added)
    vocab = backend.get_vocab(with_added_tokens=True)
    assert packed.get_vocab() == vocab
    for id in range(len(vocab) + 2):
        assert packed.id_to_token(id) == backend.id_to_token(id)
    for token in (*vocab, "", "no such token", "日"):
        assert packed.token_to_id(token) == backend.token_to_id(token)
    assert packed.special == special_ids(backend)
    assert packed.to_str() == backend.to_str()


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts(kind: str) -> None:
    """Of one character, and of none that is a token: heaps and paths of a whole text."""
    backend, packed = pair(kind)
    for text in ("a" * 50_000, "憂" * 20_000, "the and " * 10_000, "x" * 5_000 + "the"):
        assert encoded(packed, text) == encoded(backend, text)


def test_a_vocabulary_with_gaps() -> None:
    model = models.BPE({"a": 0, "b": 7, "ab": 3}, [("a", "b")])
    backend = with_marks(tokenizers.Tokenizer(model))
    folder = saved(backend)
    pack_tokenizer(folder, backend, SETTINGS, False)
    packed = opened(folder, backend)
    assert packed is not None
    assert packed.encode("abba").ids == backend.encode("abba").ids
    assert [packed.id_to_token(id) for id in range(9)] == [backend.id_to_token(i) for i in range(9)]


def unknown_kinds() -> dict[str, tokenizers.Tokenizer]:
    ab = {"a": 0, "b": 1, "ab": 2, "##b": 3, "a</w>": 4}
    return {
        "another model": tokenizers.Tokenizer(models.WordLevel(ab, unk_token="a")),
        "dropout": tokenizers.Tokenizer(models.BPE(ab, [("a", "b")], dropout=0.5)),
        "a prefix": tokenizers.Tokenizer(models.BPE(ab, [], continuing_subword_prefix="##")),
        "a suffix": tokenizers.Tokenizer(models.BPE(ab, [], end_of_word_suffix="</w>")),
        "an id of two tokens": tokenizers.Tokenizer(models.BPE({"a": 0, "b": 0}, [])),
        "no vocabulary": tokenizers.Tokenizer(models.BPE({}, [])),
        "an unknown that is none": tokenizers.Tokenizer(models.WordPiece(ab, unk_token="no")),
        "ids far apart": tokenizers.Tokenizer(models.BPE({"a": 0, "b": 9_000_000}, [])),
    }


@pytest.mark.parametrize("what", unknown_kinds())
def test_what_is_unknown_is_not_packed(what: str) -> None:
    backend = unknown_kinds()[what]
    folder = saved(backend)
    pack_tokenizer(folder, backend, SETTINGS, False)
    assert not (folder / PACKED).exists()
    assert opened(folder, backend) is None


# ------------------------------------------------------------------------------ which file is right


@pytest.fixture
def folder() -> Path:
    folder = saved(byte_level())
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    FolderAssets.of(folder, {}).pack_tokenizer()
    assert is_packed(folder)
    return folder


def tokenizer_of(folder: Path) -> Tokenizer:
    return FolderAssets.of(folder, {}).tokenizer()


def is_packed(folder: Path) -> bool:
    return isinstance(tokenizer_of(folder)._backend, PackedBackend)


def test_a_packed_tokenizer_is_the_folders(folder: Path) -> None:
    packed = tokenizer_of(folder)
    (folder / PACKED).unlink()
    whole = tokenizer_of(folder)
    assert packed.same_ids(whole)
    assert whole.same_ids(packed)
    for name in ("digest", "eos_ids", "bos_id", "added", "vocab_size"):
        assert getattr(packed, name) == getattr(whole, name)
    assert packed.to_json() == whole.to_json()
    text = f"  Ünder {MARK} the 日本 dog"
    ids = packed.encode(text)
    assert ids == whole.encode(text)
    assert packed.decode(ids) == whole.decode(ids)
    assert packed.encode_pair(text, "x") == whole.encode_pair(text, "x")
    assert [packed.first_tokens(text, n) for n in range(9)] == [
        whole.first_tokens(text, n) for n in range(9)
    ]
    with pytest.raises(RequestError, match="lone surrogate"):
        packed.encode("\ud800")


def test_a_copy_is_as_good(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert is_packed(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "tokenizer.json").write_text(
            (folder / "tokenizer.json").read_text().replace(MARK, "<|END|>")
        ),
        lambda folder: (folder / "tokenizer_config.json").write_text('{"bos_token": "the"}'),
        lambda folder: (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}'),
        lambda folder: (folder / PACKED).unlink(),
        lambda folder: (folder / PACKED).write_bytes(b""),
    ],
)
def test_files_of_another_tokenizer(folder: Path, change: Callable[[Path], object]) -> None:
    """The library reads what is there."""
    change(folder)
    assert not is_packed(folder)
    FolderAssets.of(folder, {}).pack_tokenizer()
    assert is_packed(folder)


def test_a_template_changes_no_ids(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, "chat_template": "y"}))
    assert is_packed(folder)


def test_damaged_files_give_wrong_tokens_or_none(folder: Path) -> None:
    """Any byte may be another: nothing crashes, and nothing but known errors is raised."""
    good, rng = (folder / PACKED).read_bytes(), random.Random(1)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (folder / PACKED).write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        try:
            tokenizer = tokenizer_of(folder)
            ids = tokenizer.encode("The quick brown 日本 dog" * 20)
            tokenizer.decode(ids)
        except (ModelFormatError, RequestError):
            pass


def test_a_file_truncated_under_a_tokenizer(folder: Path) -> None:
    tokenizer = tokenizer_of(folder)
    with (folder / PACKED).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ModelFormatError, match="changed"):
        tokenizer.encode("The quick brown dog")


# ------------------------------------------------------------------------------------ native tables


def test_native_arguments_are_checked() -> None:
    starts, text = np.array([0, 1, 2], np.uint32), np.frombuffer(b"ab", np.uint8)
    slots = _native.token_slots(starts, text)
    none = np.empty(0, np.uint32)
    for wrong in (none, np.array([0, 3], np.uint32), np.array([1, 0], np.uint32)):
        with pytest.raises(ValueError, match="starts"):
            _native.Tokens(wrong, text, slots)
    tokens = _native.Tokens(starts, text, slots)
    with pytest.raises(ValueError, match="model"):
        tokens.split("a")
    with pytest.raises(ValueError, match="unknown"):
        tokens.set_word_pieces("##", 2, 100)
    with pytest.raises(ValueError, match="unknown"):
        tokens.set_unigram(np.zeros(2), 2, True, False)
    with pytest.raises(ValueError, match="scores"):
        tokens.set_unigram(np.zeros(3), 0, True, False)
    with pytest.raises(ValueError, match="merges"):
        tokens.set_bpe(np.zeros((1, 3), np.uint32), None, False, False, False)
    # Without an empty slot a search still ends; an empty table has nothing.
    assert _native.Tokens(starts, text, np.zeros(3, np.uint32)).id("c") is None
    assert _native.Tokens(starts, text, none).id("a") is None
    assert (tokens.id("b"), tokens.token(1), tokens.token(2), len(tokens)) == (1, "b", None, 2)


def test_of_merges_that_are_there_twice_the_last_counts() -> None:
    merges = np.array([[0, 1, 0, 2], [0, 1, 1, 3]], np.uint32)
    slots = _native.merge_slots(merges)
    assert [row.tolist() for row in slots if row[3] != 0xFFFFFFFF] == [[0, 1, 1, 3]]
