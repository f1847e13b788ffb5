"""The dummy GGUF files that peers are given: blocks, and files as the gguf package reads them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import failure
from tokenizers import pre_tokenizers

from sterna import loading
from sterna.bench.shapes import SHAPES, Shape
from sterna.engine import Engine
from sterna.errors import RequestError
from sterna_papers.figures import prompt
from sterna_papers.peers import blocks, case, dummy_gguf, dummy_models

NEEDS_GGUF = "needs the gguf package (pip install sterna[test])"


def trits(b: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """Digit n of bytes, as ggml takes it out."""
    return ((b.astype(np.uint32) * 3**n & 255) * 3 >> 8).astype(np.int8) - 1


def decode(type: str, data: np.ndarray[Any, Any], K: int) -> tuple[Any, Any]:
    """(levels [M, K], scale): straight from the layouts, element by element."""
    if type == "IQ2_BN":
        scale = data[:, :4].copy().view("<f4")
        q = data[:, 4:].reshape(len(data), K // 64, 16)
        fields = [(q >> 2 * f & 3).astype(np.int8) - 1 for f in range(4)]
        return np.concatenate(fields, axis=-1).reshape(len(data), K), scale[0, 0]
    b = data.reshape(len(data), K // 256, -1)
    scale = np.ascontiguousarray(b[..., -2:]).view("<f2")
    if type == "TQ2_0":
        parts = [(b[..., 32 * h : 32 * h + 32] >> 2 * f & 3).astype(np.int8) - 1
                 for h in range(2) for f in range(4)]  # fmt: skip
    else:
        parts = [trits(b[..., :32], n) for n in range(5)]
        parts += [trits(b[..., 32:48], n) for n in range(5)]
        parts += [trits(b[..., 48:52], n) for n in range(4)]
    return np.concatenate(parts, axis=-1).reshape(len(data), K), scale.flat[0]


@pytest.mark.parametrize(
    ("type", "row_bytes"), [("TQ1_0", 108), ("TQ2_0", 132), ("IQ2_BN", 4 + 128)]
)
def test_blocks(type: str, row_bytes: int) -> None:
    """Encoded levels decode to themselves."""
    levels = np.random.default_rng(0).integers(-1, 2, (7, 512), np.int8)
    data = blocks.encode(type, levels, 0.5)
    assert data.shape == (7, row_bytes)
    back, scale = decode(type, data, 512)
    np.testing.assert_array_equal(back, levels)
    assert scale == 0.5
    with pytest.raises(RequestError, match="multiple of"):
        blocks.encode(type, levels[:, :100], 0.5)


@pytest.mark.parametrize("type", ["TQ1_0", "TQ2_0", "IQ2_BN"])
def test_random_rows(type: str) -> None:
    """There are as many rows as asked for, of valid codes, tiles unlike one another."""
    rows = np.concatenate(list(blocks.random_matrix(type, 150, 512, np.random.default_rng(1))))
    levels, _ = decode(type, rows, 512)
    assert levels.shape == (150, 512)
    assert set(np.unique(levels)) == {-1, 0, 1}
    assert (levels[:64] != levels[64:128]).any()
    head = np.concatenate(list(blocks.random_head(100, 512, np.random.default_rng(1))))
    assert head.shape == (100, 420)


@pytest.mark.parametrize("type", ["Q4_K", "Q6_K"])
def test_random_super_blocks(type: str) -> None:
    """The gguf package reads them as centred, of variance 1 / K, tiles unlike one another."""
    quants = pytest.importorskip("gguf.quants", reason=NEEDS_GGUF)
    rows = np.concatenate(list(blocks.random_matrix(type, 150, 512, np.random.default_rng(1))))
    assert rows.shape == (150, blocks.row_bytes(type, 512))
    values = quants.dequantize(rows, quants.GGMLQuantizationType[type])
    assert values.std() == pytest.approx(512**-0.5, rel=0.1)
    assert abs(values.mean()) < 0.1 * 512**-0.5
    assert (values[:64] != values[64:128]).any()


def written(path: Path, type: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """(bytes of tensors, tensors, fields) of a dummy file, as the gguf package reads it."""
    gguf = pytest.importorskip("gguf", reason=NEEDS_GGUF)
    nbytes = dummy_gguf.write(path, SHAPES["tiny"], type)
    reader = gguf.GGUFReader(path)
    assert sum(tensor.n_bytes for tensor in reader.tensors) == nbytes
    return nbytes, {tensor.name: tensor for tensor in reader.tensors}, reader.fields


def values_of(tensor: Any) -> Any:
    """Its weights, as the gguf package has them."""
    import gguf

    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.parametrize("type", ["TQ1_0", "TQ2_0"])
def test_dummy_file(tmp_path: Path, type: str) -> None:
    """The gguf package reads what was written: names, shapes, types, values."""
    nbytes, tensors, fields = written(tmp_path / "dummy.gguf", type)
    assert len(tensors) == 2 + 11 * 4
    down = tensors["blk.3.ffn_down.weight"]
    assert list(down.shape) == [768, 256]
    assert down.tensor_type.name == type
    values = values_of(down)
    np.testing.assert_allclose(np.unique(np.abs(values)), [0, (768 * 2 / 3) ** -0.5], rtol=1e-3)
    head = tensors["token_embd.weight"]
    assert head.tensor_type.name == "Q6_K"
    assert 0.8 < values_of(head).std() < 1.2
    assert fields["bitnet.attention.head_count_kv"].contents() == 2
    assert dummy_gguf.write(tmp_path / "dummy.gguf", SHAPES["tiny"], type) == nbytes


def test_dummy_file_of_ik_llama(tmp_path: Path) -> None:
    """A type that the gguf package does not know is written all the same."""
    pytest.importorskip("gguf", reason=NEEDS_GGUF)
    path = tmp_path / "dummy.gguf"
    nbytes = dummy_gguf.write(path, SHAPES["tiny"], "IQ2_BN")
    assert nbytes <= path.stat().st_size < nbytes + 16384


def test_no_room_for_a_dummy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is written."""
    monkeypatch.setattr(dummy_gguf, "require", lambda *_: None)
    monkeypatch.setattr(dummy_gguf.shutil, "disk_usage", lambda _: type("U", (), {"free": 1000})())
    with pytest.raises(RequestError, match="TMPDIR"):
        dummy_gguf.write(tmp_path / "dummy.gguf", SHAPES["tiny"], "TQ2_0")
    with pytest.raises(RequestError, match="multiple of 256"):
        dummy_gguf.write(tmp_path / "dummy.gguf", SHAPES["mobilellm-1.5b"], "TQ2_0")


@pytest.mark.parametrize("type", [blocks.TYPE_OF[name] for name in prompt.FORMATS])
def test_dummy_llama_file(tmp_path: Path, type: str) -> None:
    """The gguf package reads a llama model of every type: names, shapes, values, bytes."""
    nbytes, tensors, fields = written(tmp_path / "dummy.gguf", type)
    assert len(tensors) == 2 + 9 * 4  # a tied embedding
    assert nbytes == dummy_gguf.file_bytes(SHAPES["tiny"], type)
    up = tensors["blk.3.ffn_up.weight"]
    assert (list(up.shape), up.tensor_type.name) == ([256, 768], type)
    values = values_of(up)
    assert np.std(values) == pytest.approx(256**-0.5, rel=0.05)
    assert not np.array_equal(values[:64], values[64:128])
    assert tensors["token_embd.weight"].tensor_type.name == dummy_models.head_type(type)
    assert fields["llama.attention.head_count_kv"].contents() == 2


#: LFM2-8B-A1B, narrower and with fewer layers.
SMALL_LFM2 = replace(
    SHAPES["lfm2-8b-a1b"], hidden=256, intermediate=64, layers=4, heads=4, kv_heads=2, vocab=512,
    experts=8, chosen=2,
    settings={
        "intermediate_size": 320, "num_dense_layers": 1, "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
)  # fmt: skip


@pytest.fixture
def with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files get the vocabulary that Sterna asks for, and llama.cpp does not."""
    describe = dummy_gguf._describe

    def described(writer: Any, s: Shape, dummy: dummy_models.Dummy) -> None:
        describe(writer, s, dummy)
        words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*words, *(f"<{i}>" for i in range(s.vocab - len(words)))])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(s.vocab - 1)

    monkeypatch.setattr(dummy_gguf, "_describe", described)


@pytest.mark.parametrize("shape", [SHAPES["tiny-experts"], SMALL_LFM2])
@pytest.mark.parametrize("type", ["Q4_0", "F16"])
@pytest.mark.usefixtures("with_words")
def test_a_file_with_experts(shape: Shape, type: str, tmp_path: Path) -> None:
    """Sterna opens it as the shape's model; a token's bytes are those of its experts."""
    pytest.importorskip("gguf", reason=NEEDS_GGUF)
    path = tmp_path / "dummy.gguf"
    nbytes = dummy_gguf.write(path, shape, type)
    model = loading.load(path, cached=False)
    assert model.config.fields.config["architectures"] == [shape.architecture]
    assert np.isfinite(Engine(model, threads=1).logits([[1, 2, 3]])[0]).all()
    matrices = [
        (t, math.prod(t.shape)) for t in dummy_models.dummy_of(shape, type).tensors
        if len(t.shape) > 1 and "shortconv.conv." not in t.name
    ]  # fmt: skip
    assert model.n_params == sum(values for _, values in matrices)
    of_experts = sum(values for t, values in matrices if len(t.shape) == 3)
    left_out = of_experts * (shape.experts - shape.chosen) // shape.experts
    assert model.n_active_params == model.n_params - left_out
    stacks = sum(t.nbytes for t, _ in matrices if len(t.shape) == 3)
    left_out = stacks * (shape.experts - shape.chosen) // shape.experts
    assert nbytes == dummy_gguf.file_bytes(shape, type) - left_out


def test_plans_are_of_the_shapes_that_peers_run() -> None:
    assert dummy_models.PLANS.keys() == case.WITH_EXPERTS
    assert {"lfm2-8b-a1b", "tiny-experts"} <= {
        name for name, shape in SHAPES.items() if shape.architecture in case.WITH_EXPERTS
    }


def test_an_embedding_beside_the_head_is_not_read() -> None:
    """TinyLlama's has 32,000 rows of 2,048."""
    s = SHAPES["tinyllama-1.1b"]
    apart = dummy_gguf.file_bytes(s, "Q8_0") - dummy_gguf.bytes_per_token(s, "Q8_0")
    assert apart == 32000 * blocks.row_bytes("Q8_0", 2048) == 32000 * 2048 // 32 * 34
    assert [dummy_models.head_type(t) for t in ("F16", "Q8_0", "Q4_1", "TQ1_0")] == [
        "F16", "Q8_0", "Q6_K", "Q6_K",
    ]  # fmt: skip
    failure(lambda: blocks.row_bytes("Q4_0", 33), RequestError, "multiple of 32")
