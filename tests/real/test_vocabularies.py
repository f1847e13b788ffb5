"""llama.cpp's published vocabularies give the ids that are published with them.

Each ggml-vocab-*.gguf has texts (.inp) and the ids of each (.out). Mistral's tekken.json has the
rule of its ids.
"""

from __future__ import annotations

import base64
import json
import os
import random
import unicodedata
import warnings
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import assets
import numpy as np
import pytest
import texts as written
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, normalizers

from sterna.checkpoints.packed_tokenizer import (
    PackedBackend,
    pack_tokenizer,
    read_packed_tokenizer,
)
from sterna.checkpoints.tekken import Tekken
from sterna.gguf.file import GgufFile
from sterna.gguf.metadata import Metadata
from sterna.gguf.vocabulary import Vocabulary
from sterna.images import ImageProcessor
from sterna.token_bytes import TokenBytes
from sterna.tokenizer import Tokenizer as SternaTokenizer

# The id of each end of a text or a turn, as the models' generation_config.json have them.
READ = {
    "aquila": [0], "baichuan": [2], "bert-bge": [], "nomic-bert-moe": [2],
    "command-r": [255001], "deepseek-coder": [32014],
    "deepseek-llm": [100001], "falcon": [11], "gemma-4": [1, 50, 106], "gpt-2": [50256],
    "gpt-neox": [0], "llama-bpe": [128001, 128009], "llama-spm": [2], "mpt": [0],
    "phi-3": [32000, 32007], "qwen2": [151643, 151645], "qwen35": [151643, 151645], "refact": [0],
    "starcoder": [0],
}  # fmt: skip
# Published without texts.
SILENT = ("aquila", "baichuan", "gpt-neox", "nomic-bert-moe")
FOLDERS = TemporaryDirectory()  # of packed forms that many tests ask
COMPOSED = ("qwen2", "qwen35")  # their makers' tokenizers bring text into NFC first
#: Of each tokenizer, 300 of them written by hand.
STRINGS = int(os.environ.get("STERNA_STRINGS", "900"))
SEPARATOR = b"\n__ggml_vocab_test__\n"


@lru_cache(maxsize=4)
def file(name: str) -> Metadata:
    return GgufFile(assets.llama_cpp() / "models" / f"ggml-vocab-{name}.gguf").metadata


def metadata(name: str, **changed: Any) -> Metadata:
    """The metadata of a published vocabulary; changed: other values of keys, `.` being `__`."""
    found = file(name)
    values = {key.replace("__", "."): value for key, value in changed.items()}
    return Metadata(found.path, {**found._values, **values}, {})


@lru_cache(maxsize=6)
def vocabulary(name: str) -> Vocabulary:
    """A published vocabulary, read without any warning."""
    return changed_vocabulary(name)


def changed_vocabulary(name: str, **changed: Any) -> Vocabulary:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name in SILENT[::2]:
            warnings.filterwarnings("ignore", r".*tokenizer\.ggml\.pre")
        return Vocabulary(metadata(name, **changed))


def published(name: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids."""
    path = assets.llama_cpp() / "models" / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().splitlines()
    ids = [[int(id) for id in line.split()] for line in lines]
    return [(text.decode(), line) for text, line in zip(texts, ids, strict=False)]


def ids_of(backend: Tokenizer, text: str) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def test_every_vocabulary_is_known_here() -> None:
    """One more in a later llama.cpp is not left out unseen."""
    files = (assets.llama_cpp() / "models").glob("ggml-vocab-*.gguf")
    assert {f.stem.removeprefix("ggml-vocab-") for f in files} == {*READ}


@pytest.mark.parametrize("name", READ)
def test_published_ids(name: str) -> None:
    """Whoever wrote them: for BPE and SentencePiece transformers, for Qwen3.5 llama.cpp itself,
    which does not compose characters as that model's own tokenizer does."""
    read = vocabulary(name)
    assert list(read.eos_ids) == READ[name]
    if name in SILENT:
        return
    cases = published(name)
    assert len(cases) >= 46
    as_published = read.backend
    if name in COMPOSED:
        as_published = Tokenizer.from_str(read.backend.to_str())
        as_published.normalizer = normalizers.Sequence([])
    for text, ids in cases:
        assert ids_of(as_published, text) == ids, repr(text)
        if name in COMPOSED:
            composed = unicodedata.normalize("NFC", text)
            assert ids_of(read.backend, text) == ids_of(as_published, composed), repr(text)


def test_qwen35_composes_as_its_makers_do() -> None:
    """The class that transformers has for it, over the same tokens and merges."""
    qwen = pytest.importorskip("transformers.models.qwen3_5.tokenization_qwen3_5")
    read, values = vocabulary("qwen35"), metadata("qwen35")
    merges = [tuple(merge.split(" ", 1)) for merge in values.texts("tokenizer.ggml.merges")]
    theirs = qwen.Qwen3_5Tokenizer(vocab=dict(read._ids), merges=merges)
    texts = [text for text, _ in published("qwen35")]
    assert sum(unicodedata.normalize("NFC", text) != text for text in texts) == 3
    for text in texts:
        assert ids_of(read.backend, text) == theirs.encode(text, add_special_tokens=False), text


def test_encoders_surround_texts_and_pairs() -> None:
    """BERT tells the parts of a pair apart; XLM-RoBERTa's ids of these words are well known."""
    bert, unigram = (vocabulary(name).backend for name in ("bert-bge", "nomic-bert-moe"))
    pair = bert.encode("Hello", "world")
    assert pair.tokens == ["[CLS]", "hello", "[SEP]", "world", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1]
    assert unigram.encode("Hello world").ids == [0, 35378, 8999, 2]
    assert unigram.encode("Hello", "world").ids == [0, 35378, 2, 2, 8999, 2]


def test_a_text_comes_back() -> None:
    """Gemma 4's spaces and bytes, and its BOS even where an early file says that it has none."""
    backend = changed_vocabulary("gemma-4", tokenizer__ggml__add_bos_token=False).backend
    for text, _ in published("gemma-4"):
        ids = backend.encode(text).ids
        assert ids[0] == 2
        assert backend.decode(ids) == text


def test_marks_of_gemma_4s_images() -> None:
    """An image becomes the ids that transformers' Gemma4Config has for its begin, rows and end."""
    settings = {"preprocessor_config": {"image_processor_type": "Gemma4ImageProcessor"}}
    processor = ImageProcessor.from_config(settings, "config.json")
    (image,) = processor.process([Image.new("RGB", (300, 200))])
    backend = vocabulary("gemma-4").backend
    assert backend.token_to_id(processor.placeholder) == 258880
    rows = [258880] * image.tokens
    assert ids_of(backend, processor.expansion(image)) == [255999, *rows, 258882]


# ------------------------------------------------------------------------------------ packed forms


def packed(backend: Tokenizer, folder: Path) -> PackedBackend:
    backend.save(str(folder / "tokenizer.json"))
    pack_tokenizer(folder, backend, {}, False)
    made = read_packed_tokenizer(folder, {}, False, lambda: backend)
    assert made is not None
    return made


def random_strings(backend: Tokenizer, count: int) -> list[str]:
    """Texts of texts.py, cuts of them, runs of a character, any characters, and added tokens."""
    rng = random.Random(3000)
    long = "\n".join(written.TEXTS.values())
    added = [token.content for token in backend.get_added_tokens_decoder().values()] or ["x"]
    ranges = ((32, 127), (128, 0x800), (0x800, 0xD800), (0xE000, 0x110000))

    def one() -> str:
        start = rng.randrange(len(long))
        return rng.choice(
            (
                long[start : start + rng.randint(1, 200)],
                rng.choice(("", " ", "\n")).join(rng.choices(written.PIECES, k=rng.randint(2, 9))),
                rng.choice("a -=\n.0é日▁") * rng.randint(1, 200),
                "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(1, 20))),
                long[start : start + 9] + rng.choice(added) + long[start : start + 5],
            )
        )

    return [*written.strings(), *(one() for _ in range(count - 300))]


@pytest.mark.parametrize("name", [*READ, "tekken"])
def test_packed_ids(name: str, tmp_path: Path) -> None:
    """A packed tokenizer has the library's ids, offsets and kinds, of texts and pairs."""
    made = name == "tekken"
    backend = Tekken.read(assets.tekken()).backend if made else vocabulary(name).backend
    found = packed(backend, tmp_path)
    strings = random_strings(backend, STRINGS)
    for text in strings:
        theirs, ours = backend.encode(text), found.encode(text)
        assert ours.ids == theirs.ids, repr(text)
        assert (ours.offsets, ours.type_ids) == (theirs.offsets, theirs.type_ids), repr(text)
    for text, second in zip(strings[:300], strings[300:600], strict=True):
        assert found.encode(text, second).ids == backend.encode(text, second).ids
    tokens = range(backend.get_vocab_size() + 1)
    assert [found.id_to_token(id) for id in tokens] == [backend.id_to_token(id) for id in tokens]


@lru_cache(maxsize=6)
def packed_once(name: str) -> PackedBackend:
    return packed(vocabulary(name).backend, Path(mkdtemp(dir=FOLDERS.name)))


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "gemma-4", "bert-bge"])
@given(text=st.text())
def test_packed_ids_of_any_text(name: str, text: str) -> None:
    theirs, ours = vocabulary(name).backend.encode(text), packed_once(name).encode(text)
    assert (ours.ids, ours.offsets) == (theirs.ids, theirs.offsets)


# ------------------------------------------------------ what files do not say, or say wrongly


def test_phi3s_marks_take_the_white_space_behind_them() -> None:
    """No key of GGUF says so; the ids are those of its tokenizer.json."""
    text = "<|user|>\nHi there<|end|>\n<|assistant|>\n\n And</s>  <s> x<unk> y<|endoftext|> z"
    for changed in ({}, {"general__name": "Phi 3.5 Mini Instruct"}):
        backend = changed_vocabulary("phi-3", **changed).backend
        plain = ["▁Hi", "▁there", "▁And", "▁", "▁x", "▁", "▁y", "▁", "▁z"]
        tokens = [backend.id_to_token(id) for id in ids_of(backend, text)]
        assert [t for t in tokens if t[0] != "<"] == plain
    elsewhere = {"general__name": "Tuned", "general__architecture": "llama"}
    backend = changed_vocabulary("phi-3", **elsewhere).backend
    assert "<0x0A>" in backend.encode(text).tokens


def retyped(name: str, *spellings: str, type: int = 1) -> dict[str, Any]:
    """The types of a published vocabulary, as an exporter would write them who lost some."""
    values = metadata(name)
    types = np.array(values.array("tokenizer.ggml.token_type"))
    tokens = values.texts("tokenizer.ggml.tokens")
    for spelling in spellings:
        types[tokens.index(spelling)] = type
    return {"tokenizer__ggml__token_type": types}


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("qwen2", ["<|im_start|>", "<|im_end|>"]),
        ("llama-bpe", ["<|start_header_id|>", "<|eot_id|>", "<|reserved_special_token_0|>"]),
        ("gemma-4", ["<|turn>", "<turn|>", "<|tool_response>"]),
        ("phi-3", ["<|user|>", "<|end|>", "<|assistant|>"]),
    ],
)
def test_marks_that_an_exporter_typed_as_words(name: str, marks: list[str]) -> None:
    """They stay whole and end turns, and a warning names them."""
    changed = retyped(name, *marks)
    if name == "llama-bpe":  # the last of its marks is known by the template alone
        changed["tokenizer__chat_template"] = "{{ '<|reserved_special_token_0|>' }}"
    with pytest.warns(RuntimeWarning, match=r"marks by the chat template or their family"):
        read = Vocabulary(metadata(name, **changed))
    assert list(read.eos_ids) == READ[name]
    for mark in marks:
        assert ids_of(read.backend, f"a{mark}b").count(read.backend.token_to_id(mark)) == 1
    untouched = vocabulary(name).backend
    for text, _ in published(name):
        assert ids_of(read.backend, text) == ids_of(untouched, text)


def test_bytes_are_no_added_tokens() -> None:
    """Typed as control or by a user, they would be hidden, or found in texts that spell them."""
    for type in (3, 4):
        changed = retyped("llama-spm", "<0xE2>", "<0x96>", "<0x41>", type=type)
        read, untouched = changed_vocabulary("llama-spm", **changed), vocabulary("llama-spm")
        for text in ("▁🦙 <0x41>", "⚡"):
            assert ids_of(read.backend, text) == ids_of(untouched.backend, text)


@pytest.mark.parametrize("name", ["llama-spm", "gpt-2"])
def test_a_token_that_is_there_twice(name: str) -> None:
    """The last id is the text's; the other is the same text to whoever decodes it."""
    values = metadata(name)
    tokens = list(values.texts("tokenizer.ggml.tokens"))
    twice = [tokens[id] for id in (9_000, 9_001)]
    tokens[20_000:20_002] = twice
    with pytest.warns(RuntimeWarning, match="twice in the vocabulary"):
        read = Vocabulary(metadata(name, tokenizer__ggml__tokens=tokens))
    for first, last, spelling in zip((9_000, 9_001), (20_000, 20_001), twice, strict=True):
        assert read.backend.token_to_id(spelling) == last
        tokenizer = SternaTokenizer.from_parts(Path("x.gguf"), read.backend, {}, [])
        assert read.backend.decode([first]) == read.backend.decode([last]) != ""
        assert tokenizer.decode([first]) == tokenizer.decode([last]) == read.backend.decode([last])
    ids = {id for text, _ in published(name) for id in ids_of(read.backend, text)}
    assert not ids & {9_000, 9_001}


# ------------------------------------------------------------------------ ends of a family


def test_gpt_oss_goes_on_after_its_reasoning() -> None:
    """<|end|> ends a message of a turn in Harmony, and a turn of Phi-3; here both have it."""
    tokens = list(metadata("gpt-2").texts("tokenizer.ggml.tokens"))
    harmony = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"]
    ids = dict(zip(harmony, range(50_000, 50_006), strict=True))
    was = [tokens[id] for id in ids.values()]
    for mark, id in ids.items():
        tokens[id] = mark
    template = assets.llama_cpp() / "models" / "templates" / "openai-gpt-oss-120b.jinja"
    read = changed_vocabulary(
        "gpt-2",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__merges=metadata("gpt-2").texts("tokenizer.ggml.merges")[:40_000],
        **retyped("gpt-2", *was, type=3),
        tokenizer__ggml__eos_token_id=ids["<|end|>"],  # as a wrong exporter has it
        tokenizer__chat_template=template.read_text(encoding="utf-8"),
    )
    ends = {read.tokens[id] for id in read.eos_ids}
    assert {"<|return|>", "<|call|>"} <= ends
    assert "<|end|>" not in ends


# ------------------------------------------------------------------------------------ tekken.json


def test_a_published_tekken_has_the_ids_of_its_rule() -> None:
    """Neighbours of the lowest joined rank merge first, in all words of llama.cpp's texts."""
    made = Tekken.read(assets.tekken()).backend
    assert made.get_vocab_size() == 131_072
    listed = json.loads(assets.tekken().read_text(encoding="utf-8"))["vocab"][:130_072]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in listed}
    texts = [text for text, _ in published("llama-bpe")]
    assert made.pre_tokenizer is not None
    cut = [word for text in texts for word, _ in made.pre_tokenizer.pre_tokenize_str(text)]
    words = [TokenBytes(byte_level=True).decode(word, True) for word in cut]
    assert b"".join(words) == "".join(texts).encode()
    merged = 0
    for word in dict.fromkeys(words):
        parts = [word] if word in ranks else [bytes([byte]) for byte in word]
        while len(parts) > 1:
            joined = ((ranks.get(a + b, len(ranks)), i) for i, (a, b) in enumerate(pairwise(parts)))
            rank, i = min(joined)
            if rank == len(ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids = made.encode(word.decode(), add_special_tokens=False).ids
        assert ids == [ranks[part] + 1000 for part in parts], word
        merged += len(parts) < len(word)
    assert merged > 50
