"""GGUF files that are damaged or meant to harm: refused, in little memory and time, with a reason.

STERNA_FUZZ sets the number of mutations; 20,000 take about half a minute.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import failure

pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

from gguf_factory import entry, i2s_bytes, raw_file, scalar, text
from work import bounded_calls

from sterna import loading
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    SternaError,
    UnsupportedModelError,
)
from sterna.gguf.file import GgufFile, GgufModel
from sterna.gguf.paths import is_gguf

MUTATIONS = int(os.environ.get("STERNA_FUZZ", "1500"))
MEMORY_BYTES = 256 << 20  # in addition to twice the file
MOST_CALLS = 2_000_000  # fifty times those of the sound file
WORDS = ["<s>", "</s>", "a", "b", "c", "ab", "abc", "Ġ", "Ġa", "é"]
PIECES = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "▁", "a", "b", "▁a", "▁ab", "ab", "é"]


def settings(kind: str) -> dict[str, Any]:
    """The metadata of a model of one small layer."""
    tokens = WORDS if kind == "gpt2" else PIECES
    specials = {
        "gpt2": {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.merges": ["a b", "ab c"]},
        "llama": {"tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))]},
    }  # fmt: skip
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t[0] == "<" and "x" not in t else 1 for t in tokens],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
        **specials[kind],
    }


def small(path: Path, kind: str = "gpt2") -> Path:
    """A model of a few kilobytes that loads: floats, Q8_0 blocks and I2_S."""
    rng = np.random.default_rng(7)

    def floats(*shape: int) -> bytes:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32).tobytes()

    def q8_0(M: int, K: int) -> bytes:
        blocks = rng.integers(0, 256, (M * K // 32, 34), np.uint8)
        blocks[:, :2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
        return blocks.tobytes()

    def i2_s(M: int, K: int) -> bytes:
        return i2s_bytes(rng.integers(-1, 2, (M, K)), 0.1, "128")

    n_tokens = len(WORDS if kind == "gpt2" else PIECES)
    tensors = [
        ("token_embd.weight", (n_tokens, 32), 0, floats(n_tokens, 32)),
        ("output_norm.weight", (32,), 0, floats(32)),
        ("blk.0.attn_norm.weight", (32,), 0, floats(32)),
        ("blk.0.ffn_norm.weight", (32,), 0, floats(32)),
        ("blk.0.attn_q.weight", (32, 32), 8, q8_0(32, 32)),
        ("blk.0.attn_k.weight", (16, 32), 8, q8_0(16, 32)),
        ("blk.0.attn_v.weight", (16, 32), 8, q8_0(16, 32)),
        ("blk.0.attn_output.weight", (32, 32), 8, q8_0(32, 32)),
        ("blk.0.ffn_gate.weight", (64, 32), 36, i2_s(64, 32)),
        ("blk.0.ffn_up.weight", (64, 32), 36, i2_s(64, 32)),
        ("blk.0.ffn_down.weight", (32, 64), 36, i2_s(32, 64)),
    ]
    return raw_file(path, settings(kind), tensors)


def load(path: Path) -> None:
    """All that is made of a file before its first token."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = loading.load(path, cached=False, threads=1)
    assert model.assets is not None
    tokenizer = model.assets.tokenizer()
    tokenizer.check(model.config.vocab_size)
    tokenizer.decode(tokenizer.encode("abc a<s>é\n"))


def refused(path: Path) -> SternaError | None:
    """The error of loading, None if the file is sound; anything but ours is a failure."""
    try:
        with bounded_calls(MOST_CALLS):
            load(path)
    except (ModelFormatError, UnsupportedModelError, NonFiniteError) as error:
        message = str(error)
        assert message.isprintable()
        assert path.name in message
        return error
    return None


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_every_truncation_is_refused(kind: str, tmp_path: Path) -> None:
    """But for the padding after the last tensor, every byte is missed."""
    whole = small(tmp_path / "whole.gguf", kind)
    data = whole.read_bytes()
    load(whole)
    end = max(info.offset + info.nbytes for info in GgufFile(whole).tensors.values())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data)
    for length in reversed(range(end)):
        os.truncate(cut, length)
        with pytest.raises(ModelFormatError) as caught:
            GgufModel(cut)
        assert caught.value.file == str(cut)
        assert caught.value.expected is not None
    cut.write_bytes(data[:end])
    load(cut)


def mutated(data: bytes, random: random.Random) -> bytes:
    """One to three changes: bits, numbers at their edges, pieces cut, doubled or moved."""
    out = bytearray(data)
    header = data.index(b"blk.0.ffn_down") + 64
    for _ in range(random.randint(1, 3)):
        # Most of a file are weights, of which any are sound: change the header nine times in ten
        at = random.randrange(header if random.random() < 0.9 else len(out))
        kind = random.randrange(6)
        if kind == 0:
            out[at % len(out)] ^= 1 << random.randrange(8)
        elif kind == 1:
            out[at % len(out)] = random.randrange(256)
        elif kind == 2:
            edges = (0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1, len(data), 65536)
            width = random.choice((4, 8))
            value = random.choice(edges) + random.randint(-1, 1)
            out[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == 3:
            del out[at : at + random.choice((1, 4, 8, 32))]
        elif kind == 4:
            out[at:at] = out[at : at + random.choice((1, 4, 8, 32))]
        else:
            other, size = random.randrange(header), random.choice((4, 8, 16))
            out[at : at + size] = data[other : other + size]
    return bytes(out)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_mutations(kind: str, tmp_path: Path) -> None:
    """Seeded: no crash, no hang, no large allocation; each refusal is one of ours."""
    data = small(tmp_path / "small.gguf", kind).read_bytes()
    path = tmp_path / "mutated.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusals = 0
    for seed in range(MUTATIONS // 2):
        path.write_bytes(mutated(data, random.Random(f"{kind} {seed}")))
        try:
            refusals += refused(path) is not None
        except BaseException:
            print(f"{kind}, seed {seed}")
            raise
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 2 * len(data) + MEMORY_BYTES
    assert refusals > MUTATIONS // 8  # else the mutations do not reach what is checked


# -------------------------------------------------------------------------- headers with intent


def header(values: bytes, n_values: int, tensors: bytes = b"", n_tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values) + values + tensors


def tensor(
    name: str = "t", sizes: tuple[int, ...] = (4,), type_id: int = 0, offset: int = 0
) -> bytes:
    return text(name) + struct.pack(
        f"<I{len(sizes)}QIQ", len(sizes), *(s % 2**64 for s in sizes), type_id, offset
    )


def array(element: int, count: int, body: bytes = b"") -> bytes:
    return text("key") + struct.pack("<IIQ", 9, element, count) + body


HUGE = 2**64 - 1
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "magic"),
    "four bytes": (b"GGUF", "version"),
    "another magic": (b"GGML" + bytes(60), "magic"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version"),
    "tensors without end": (header(b"", 0, b"", HUGE), "number of tensors"),
    "keys without end": (header(b"", HUGE), "number of metadata entries"),
    "keys that cannot fit": (header(bytes(100), 9), "number of metadata entries"),
    "a key without end": (header(struct.pack("<Q", HUGE) + bytes(20), 1), "key"),
    "a key that is not text": (header(struct.pack("<Q", 2) + b"\xff\xfe" + bytes(20), 1), "UTF-8"),
    "a key twice": (header(2 * entry("a", 1), 2), "once"),
    "a type of no value": (header(text("key") + struct.pack("<I", 13) + bytes(8), 1), "key"),
    "a boolean of 2": (header(text("key") + struct.pack("<IB", 7, 2) + bytes(8), 1), "boolean"),
    "an array of arrays": (header(array(9, 1, bytes(64)), 1), "elements of type 9"),
    "an array without end": (header(array(4, HUGE, bytes(64)), 1), "key"),
    "an array whose size wraps": (header(array(4, 2**62, bytes(64)), 1), "key"),
    "strings without end": (header(array(8, 2**61, bytes(64)), 1), "key"),
    "strings of nothing": (header(array(8, 5_000_000, bytes(64)), 1), "key"),
    "alignment 0": (header(entry("general.alignment", 0), 1), "general.alignment"),
    "alignment 33": (header(entry("general.alignment", 33), 1), "power of two"),
    "alignment 2^17": (header(entry("general.alignment", 1 << 17), 1), "power of two"),
    "alignment as text": (header(entry("general.alignment", "32"), 1), "power of two"),
    "no dimension": (header(b"", 0, tensor(sizes=()) + bytes(64), 1), "dimensions"),
    "five dimensions": (header(b"", 0, tensor(sizes=(1,) * 5) + bytes(64), 1), "dimensions"),
    "a size of 0": (header(b"", 0, tensor(sizes=(4, 0)) + bytes(64), 1), "size 1"),
    "a size of 2^32": (header(b"", 0, tensor(sizes=(2**32,)) + bytes(64), 1), "size 0"),
    "a product that wraps": (header(b"", 0, tensor(sizes=(2**31,) * 4) + bytes(64), 1), "t.size"),
    "an offset without end": (header(b"", 0, tensor(offset=HUGE) + bytes(64), 1), "t.offset"),
    "an offset beyond": (header(b"", 0, tensor(offset=1 << 20) + bytes(64), 1), "t.offset"),
    "an offset not aligned": (header(b"", 0, tensor(offset=4) + bytes(64), 1), "t.offset"),
    "a type that is none": (header(b"", 0, tensor(type_id=99) + bytes(64), 1), "t.type"),
    "part of a block": (header(b"", 0, tensor(sizes=(33,), type_id=8) + bytes(99), 1), "t.shape"),
    "a name twice": (header(b"", 0, tensor() + tensor(offset=32) + bytes(99), 2), "once"),
    "an overlap": (header(b"", 0, tensor("a") + tensor("b") + bytes(99), 2), "a.size"),
    "a gap": (header(b"", 0, tensor("a") + tensor("b", offset=64) + bytes(150), 2), "b.offset"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(case: str, tmp_path: Path) -> None:
    """Refused before anything of the size that they claim is allocated."""
    data, word = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        failure(lambda: GgufFile(path), ModelFormatError, "hostile.gguf", word)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_big_endian_and_version_1(tmp_path: Path) -> None:
    """Sound files that Sterna does not read say so."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    failure(lambda: GgufFile(path), UnsupportedModelError, "big-endian")
    path.write_bytes(b"GGUF" + struct.pack("<III", 1, 0, 0))
    failure(lambda: GgufFile(path), UnsupportedModelError, "version 1")


TYPES: dict[str, tuple[int, int, type[SternaError], str]] = {  # id, bytes of 256 weights
    "IQ4_NL_4_4": (36, 144, UnsupportedModelError, "IQ4_NL_4_4"),
    "TL2 under 39": (39, 100, UnsupportedModelError, "I2_S"),
    "TL2 under 42": (42, 100, UnsupportedModelError, "I2_S"),
    "TL1": (38, 100, UnsupportedModelError, "TL1"),
    "neither I2_S nor IQ4_NL": (36, 111, ModelFormatError, "I2_S or IQ4_NL_4_4"),
    "F64": (28, 2048, UnsupportedModelError, "F64"),
    "IQ4_KT": (155, 136, UnsupportedModelError, "got IQ4_KT"),
}


@pytest.mark.parametrize("case", TYPES)
def test_types_that_do_not_run(case: str, tmp_path: Path) -> None:
    """Sound ones are unsupported, and bytes that no type of the id has are damage."""
    type_id, nbytes, kind, word = TYPES[case]
    path = tmp_path / "x.gguf"
    raw_file(
        path,
        {"general.architecture": "bitnet"},
        [("a", (1, 256), type_id, bytes(nbytes)), ("b", (1,), 0, bytes(4))],
    )
    failure(lambda: GgufFile(path), kind, "x.gguf", word)


def test_ids_that_several_types_share(tmp_path: Path) -> None:
    """The bytes up to the next tensor tell which it is; where they do not, it is refused."""
    path = tmp_path / "x.gguf"
    after = ("z", (1,), 0, bytes(4))
    for type_id, nbytes, name in (
        (36, 96, "I2_S"), (39, 136, "MXFP4"), (41, 36, "Q1_0"), (42, 72, "Q2_0"), (42, 68, "Q2_0")
    ):  # fmt: skip
        for tensors in ([("a", (1, 256), type_id, bytes(nbytes)), after],):
            raw_file(path, {}, tensors)
            if name == "Q2_0":  # 72 and 68 bytes are 96 with the padding
                failure(lambda: GgufFile(path), UnsupportedModelError, "Q2_0 or PQ2_0")
            else:
                assert GgufFile(path).tensors["a"].dtype == name
    for nbytes, name in ((18 * 64, "Q2_0"), (34 * 32, "PQ2_0")):
        raw_file(path, {}, [("a", (4, 1024), 42, bytes(nbytes)), after])
        assert GgufFile(path).tensors["a"].dtype == name
        raw_file(path, {}, [("a", (4, 1024), 42, bytes(nbytes))])
        assert GgufFile(path).tensors["a"].dtype == name


def test_damage_of_weights(tmp_path: Path) -> None:
    """Damage that only the blocks show is found where they are read."""
    path = small(tmp_path / "x.gguf")
    tensors = GgufFile(path).tensors
    data = path.read_bytes()

    def changed(name: str, at: int, value: bytes) -> Path:
        begin = tensors[name].offset + at
        path.write_bytes(data[:begin] + value + data[begin + len(value) :])
        return path

    def loads(name: str, at: int, value: bytes) -> Callable[[], None]:
        return lambda: load(changed(name, at, value))

    up = "blk.0.ffn_up.weight"
    failure(loads(up, 3, b"\xff"), ModelFormatError, up, "code 3")
    failure(loads(up, 512, scalar("f32", float("nan"))), NonFiniteError, up, "scale")
    failure(loads("blk.0.attn_k.weight", 0, b"\0\x7c"), NonFiniteError, "attn_", "finite")
    failure(loads("output_norm.weight", 4, b"\0\0\x80\x7f"), NonFiniteError, "output_norm")


def test_a_file_changed_while_in_use(tmp_path: Path) -> None:
    """Reading goes on from the same file or not at all."""
    path = small(tmp_path / "x.gguf")
    file = GgufFile(path)
    assert file.read("output_norm.weight").shape == (1, 128)
    path.write_bytes(path.read_bytes()[:-64])
    failure(lambda: file.read("output_norm.weight"), ModelFormatError, "changed")


def test_what_is_a_gguf_file(tmp_path: Path) -> None:
    """A name, or the first bytes of a file."""
    blob = tmp_path / "sha256-0123"
    small(tmp_path / "x.gguf").rename(blob)
    assert is_gguf(blob)
    load(blob)
    assert is_gguf("model.GGUF")
    (tmp_path / "folder.gguf").mkdir()
    assert not is_gguf(tmp_path / "folder.gguf")
    assert not is_gguf(tmp_path)


def test_many_strings_take_bounded_memory(tmp_path: Path) -> None:
    """The worst that Python makes of a header is bounded by the file's size."""
    count = 100_000
    body = b"".join(scalar("str", f"{i % 1000:03}") for i in range(count))
    path = tmp_path / "x.gguf"
    path.write_bytes(header(array(8, count, body), 1))
    tracemalloc.start()
    try:
        assert len(GgufFile(path).metadata.texts("key")) == count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * path.stat().st_size + MEMORY_BYTES
