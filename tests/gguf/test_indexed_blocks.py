"""IQ1, IQ2 and IQ3: what the gguf package decodes, in the nearest format that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_factory import Tiny, build, checkpoint, write
from helpers import assert_same_bits, failure

from sterna import LLM, ops
from sterna.errors import NonFiniteError, UnsupportedModelError
from sterna.gguf.indexed_blocks import INDEXED, decoded, from_indexed

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

#: The largest share of the weights' size that conversion loses; 0: nothing.
LOSS = {"iq2_xxs": 3e-4, "iq2_xs": 6e-3, "iq2_s": 6e-3}


def random_blocks(name: str, M: int, count: int) -> np.ndarray:
    """Any bytes but finite scales, which are not so small that an eighth of one is no f16."""
    rng = np.random.default_rng(M)
    raw = rng.integers(0, 256, (M, count, INDEXED[name].nbytes), np.uint8)
    d = rng.uniform(0.25, 4, (M, count, 1)) * rng.choice([-1, 1], (M, count, 1))
    bits = (d / 256).astype(np.float16).view(np.uint16)
    if name == "iq1_m":  # four bits in each of four words
        for i in range(4):
            part = (bits[..., 0] >> 4 * i & 15).astype(np.uint8) << 4
            raw[..., 49 + 2 * i] = raw[..., 49 + 2 * i] & 15 | part
    else:
        raw[..., :2] = bits.view(np.uint8)
    return raw.reshape(M, -1)


@pytest.mark.parametrize("name", INDEXED)
def test_weights_are_those_of_gguf(name: str) -> None:
    """Of IQ1 and IQ3 all bits, of IQ2 nearly; rows in any order, and of several arrays."""
    raw = random_blocks(name, 70, 2)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    assert_same_bits(decoded(name, raw, 2), expected)
    order = np.random.default_rng(1).permutation(70)
    packed = from_indexed(name, [raw[:30], raw[30:]], threads=2, order=order)
    assert packed.format == INDEXED[name].format
    got, expected = ops.dequantize(packed), expected[order]
    if name in LOSS:
        assert np.linalg.norm(got - expected) < LOSS[name] * np.linalg.norm(expected)
    else:
        np.testing.assert_array_equal(got, expected)
    assert_same_bits(ops.dequantize(from_indexed(name, [raw], "f32", order=order)), expected)


def test_scales_that_are_not_finite() -> None:
    """They are named."""
    raw = random_blocks("iq3_s", 2, 1)
    raw[1, :2] = 0xFF, 0x7C
    failure(lambda: from_indexed("iq3_s", [raw]), NonFiniteError, "iq3_s", "nan")


def logits(llm: LLM) -> np.ndarray:
    """All logits of a text [n, vocab]."""
    return llm.logits(llm.tokenizer.encode("The quick brown fox"))


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, Tiny]:
    types = {"": "IQ3_S", "attn_v": "IQ2_XXS", "attn_k": "IQ2_S", "ffn_down": "IQ1_S"}
    tiny = Tiny(layers=1, types=types, seed=5)
    write(tmp_path / "x.gguf", tiny)
    return tmp_path / "x.gguf", tiny


def test_a_file_runs(mixed: tuple[Path, Tiny], tmp_path: Path) -> None:
    """A line says what became of which type; floats are those of the blocks, to the bit."""
    path, tiny = mixed
    with pytest.warns(RuntimeWarning, match=r"IQ3_S to q6_k.*IQ2_XXS to q8_0") as caught:
        llm = LLM(path)
    assert len([w for w in caught if "converted on load" in str(w.message)]) == 1
    reference = LLM(checkpoint(tmp_path / "hf", tiny, build(tiny)[1]), format="f32", head="f32")
    with pytest.warns(RuntimeWarning, match="converted on load"):
        floats = LLM(path, format="f32", head="f32")
    expected = logits(reference)
    assert_same_bits(logits(floats), expected)
    error = np.abs(logits(llm) - expected).max(axis=1)
    assert np.median(error) < 0.15 * float(np.std(expected))


def test_without_the_package(mixed: tuple[Path, Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says how to install it."""
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    failure(lambda: LLM(mixed[0]), UnsupportedModelError, "pip install 'sterna[gguf]'")
