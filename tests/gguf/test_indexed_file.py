"""Files of IQ1, IQ2 and IQ3 run in their own size, without the gguf package."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_factory import Tiny, build, checkpoint, write
from helpers import assert_same_bits, failure

from sterna import LLM
from sterna.errors import NonFiniteError
from sterna.formats.ggml_blocks import BLOCKS

pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

INDEXED = [name for name, block in BLOCKS.items() if block.format.layout.name == name]
TYPES = {"": "IQ3_S", "attn_v": "IQ2_XXS", "attn_k": "IQ2_S", "ffn_down": "IQ1_S"}


def logits(llm: LLM) -> np.ndarray:
    """All logits of a text [n, vocab]."""
    return llm.logits(llm.tokenizer.encode("The quick brown fox"))


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, Tiny]:
    tiny = Tiny(layers=1, types=TYPES, seed=5)
    write(tmp_path / "x.gguf", tiny)
    return tmp_path / "x.gguf", tiny


def test_a_file_runs(
    mixed: tuple[Path, Tiny], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly as its weights in floats, which are those of the blocks; embeddings too."""
    path, tiny = mixed
    reference = LLM(checkpoint(tmp_path / "hf", tiny, build(tiny)[1]), format="f32", head="f32")
    monkeypatch.setitem(sys.modules, "gguf", None)
    llm, floats = LLM(path), LLM(path, format="f32", head="f32")
    expected = logits(reference)
    assert_same_bits(logits(floats), expected)
    error = np.abs(logits(llm) - expected).max(axis=1)
    assert np.median(error) < 0.15 * float(np.std(expected))
    assert_same_bits(logits(llm)[-1:], llm.logits(llm.tokenizer.encode("The quick brown fox"))[-1:])


def test_another_format_may_be_asked_for(mixed: tuple[Path, Tiny]) -> None:
    """Blocks of tables are rounded to any format, as floats are."""
    expected = logits(LLM(mixed[0], format="f32", head="f32"))
    error = np.abs(logits(LLM(mixed[0], format="q8_0")) - expected).max(axis=1)
    assert np.median(error) < 0.15 * float(np.std(expected))


def test_a_scale_that_is_not_finite(mixed: tuple[Path, Tiny]) -> None:
    """The error names the tensor and the value."""
    from sterna.gguf.file import GgufModel

    info = GgufModel(mixed[0]).tensors["blk.0.ffn_down.weight"]
    raw = bytearray(mixed[0].read_bytes())
    raw[info.offset : info.offset + 2] = b"\xff\x7f"
    mixed[0].write_bytes(raw)
    failure(lambda: LLM(mixed[0]), NonFiniteError, "blk.0.ffn_down.weight", "nan", "block 0")


@pytest.mark.parametrize("name", INDEXED)
def test_memory(name: str) -> None:
    """A weight takes the bytes of the file, or at most 1.03 times those."""
    block = BLOCKS[name]
    f = block.format
    assert f.tile_bytes(4096) * 64 + f.scale_bytes(4096, 4096) <= 1.03 * 4096 * 16 * block.nbytes
