"""A fused matrix that is several weights: each writes its columns, however it rounds its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, failure

from sterna import _native, loading, ops
from sterna.checkpoints.assets import FolderAssets
from sterna.checkpoints.directory import Checkpoint
from sterna.engine import Engine
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.formats import PackedWeight
from sterna.graph import GraphBuilder, Heads, Value
from sterna.graph.ops import EmbedOp, LinearOp
from sterna.weights.checkpoint_weights import CheckpointWeights
from sterna.weights.sources import Linear, PackedWeights, in_runs

WIDTH, VOCAB = 256, 256
ROWS = (100, 64, 37)  # only the second is whole groups of 16
# Roundings of the input: a row, 32, 256, none; and the same one again after another.
MIXTURES = [
    ("q4_k", "q6_k", "q4_k"),
    ("i8", "q4_0", "i8"),
    ("tq2_0", "f16", "q8_0"),
    ("bf16", "t5", "f32"),
    ("i2", "q4_1", "i1"),
]


def weights_of(names: tuple[str, ...], seed: int = 0) -> list[PackedWeight]:
    """Random weights [ROWS[i], WIDTH] in these formats."""
    rng = np.random.default_rng(seed)
    return [
        ops.quantize(rng.standard_normal((m, WIDTH)).astype(np.float32), name)
        for m, name in zip(ROWS, names, strict=True)
    ]


def rows_of(
    table: np.ndarray,
    weights: list[PackedWeight],
    bias: np.ndarray | None,
    isa: str,
    threads: int,
    n: int,
) -> np.ndarray:
    """The output of one linear word for the table's first n rows, float32 [n, sum of rows]."""
    g = GraphBuilder(Heads(1, 1, 16))
    packed = ops.pack(table, format="f32")
    y = g.linear(g.add(EmbedOp(weight=packed)), weights, "several", bias=bias)
    # Products of outputs and an identity: all of a sum but one are 0.
    identity = ops.pack(np.eye(VOCAB, y.width, dtype=np.float32), format="f32")
    g.linear(g.select(y), identity, "lm_head")
    cache = _native.KvCache([(1, 16)], 1, "f32")
    tokens = np.arange(n, dtype=np.int32)
    page = np.zeros(1, np.int32)
    logits = g.graph.compile().run(cache, tokens, [(0, n, n, page)], isa, threads)[0]
    starts = zip(y.starts, (w.M for w in weights), strict=True)
    return np.concatenate([logits[:, at : at + m] for at, m in starts], axis=1)


@pytest.mark.parametrize("names", MIXTURES, ids="-".join)
@pytest.mark.parametrize("biased", [False, True])
def test_each_writes_its_columns(names: tuple[str, ...], biased: bool) -> None:
    """The bits are those of ops.linear of each alone and one addition, on every unit."""
    rng = np.random.default_rng(1)
    table = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    weights = weights_of(names)
    bias = rng.standard_normal(sum(ROWS)).astype(np.float32) if biased else None
    for isa in _native.isas():
        alone = [ops.linear(table, w, isa=isa, threads=1, deterministic=True) for w in weights]
        expected = np.concatenate(alone, axis=1)
        # The identity's sums begin with +0, so that no −0 comes out.
        expected = (expected if bias is None else expected + bias) + np.float32(0)
        for n, threads in ((1, 1), (3, 2), (40, 3)):
            got = rows_of(table, weights, bias, isa, threads, n)
            assert_same_bits(got, expected[:n])


def test_a_bias_of_another_size() -> None:
    """Neither the graph nor the native program takes one that does not fit."""
    g = GraphBuilder(Heads(1, 1, 16))
    (w, *_) = weights_of(MIXTURES[0])
    x = g.add(EmbedOp(weight=ops.pack(np.zeros((VOCAB, WIDTH), np.float32), format="f32")))
    with pytest.raises(ValueError, match="bias: must have 100 values"):
        g.linear(x, w, "w", bias=np.zeros(99, np.float32))
    with pytest.raises(ValueError, match="a residual needs one weight"):
        g.linear(x, [w, w], "w", residual=x)
    p, narrow, wide = _native.Program(), Value(112), Value(256)
    numbers = {id(w): p.weight(w.native())}
    for value in (narrow, wide):
        numbers[id(value)] = p.value(p.buffer(value.width), value.width)
    bad: list[dict[str, Any]] = [
        {"bias": np.zeros(99, np.float32)},
        {"column": 8},
        {"column": -16},
        {"column": 32},
        {"column": 1 << 62},
    ]
    for options in bad:
        with pytest.raises(ValueError, match=r"w \(linear\): (bias|column): "):
            p.add(LinearOp(name="w", output=narrow, x=wide, weight=w, **options), numbers)
    p.add(LinearOp(name="w", output=narrow, x=wide, weight=w, column=16), numbers)


@dataclass
class Apart(CheckpointWeights):
    """A checkpoint whose parts never become one weight; `of` gives some of them a format."""

    of: dict[str, str] = field(default_factory=dict)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """A weight for each part."""
        weights = []
        for module, (part,) in in_runs(name, parts, lambda p: p.name):
            self.format = self.of.get(part.name.rpartition(".")[2], "i8")
            weights += super().matrix(module, [part])
        return weights


def apart(folder: Path, of: dict[str, str]) -> loading.Model:
    """The model of a folder with its parts in these formats, i8 by default."""
    checkpoint = Checkpoint.open(folder)
    model = loading.from_weights(
        checkpoint.config,
        folder / "config.json",
        lambda _: Apart(checkpoint, None, "int8", 2, False, of=of),
    )
    model.path, model.assets = folder, FolderAssets.of(folder, checkpoint.config)
    return model


def logits_of(model: loading.Model, isa: str | None = None, threads: int = 2) -> np.ndarray:
    """Logits of 40 positions."""
    tokens = np.random.default_rng(3).integers(0, 256, 40).tolist()
    return Engine(model, threads=threads, isa=isa).logits([tokens])[0]


@pytest.mark.parametrize("recipe", ["llama-f32", "llama-bias", "qwen2", "qwen3"])
def test_parts_apart_are_the_parts_as_one(recipe: str, checkpoint: Callable[[str], Path]) -> None:
    """Rows in more weights have the same bits: feed-forward widths of 212 and 160."""
    folder = checkpoint(recipe)
    fused = loading.load(folder, format="i8", head="int8")
    split = apart(folder, {})
    assert len(split.graph.ops) == len(fused.graph.ops) + 3 * fused.config.n_layers
    assert_same_bits(logits_of(split), logits_of(fused))


Q4_K_M = {
    "q_proj": "q4_k", "k_proj": "q4_k", "v_proj": "q6_k", "o_proj": "q4_k",
    "gate_proj": "q4_k", "up_proj": "tq2_0", "down_proj": "f16",
}  # fmt: skip


def test_mixed_formats_everywhere(checkpoint: Callable[[str], Path]) -> None:
    """Several formats and roundings in one matrix: one digest over units and threads."""
    model = apart(checkpoint("llama-256"), Q4_K_M)
    assert model.format == "f16"  # of most bytes: down_proj
    assert not model.graph.can_be_fast
    first = logits_of(model, "scalar", 1)
    other = apart(checkpoint("llama-256"), Q4_K_M | {"v_proj": "q4_k"})
    assert np.abs(logits_of(other) - first).max() > 1e-3
    for isa in _native.isas():
        for threads in (1, 3):
            assert_same_bits(logits_of(model, isa, threads), first)


def test_heads_that_are_padded(checkpoint: Callable[[str], Path]) -> None:
    """Where a part's rows are no whole groups of 16, the row [q | k | v] cannot have gaps."""
    failure(lambda: apart(checkpoint("llama-heads-of-20"), {}), UnsupportedModelError, "head_dim")


def test_a_packed_directory_of_several(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Stored and loaded under the names of `in_runs`; the logits are the same."""
    model = apart(checkpoint("llama-256"), Q4_K_M)
    loading.save(model, tmp_path / "packed")
    reread = loading.load(tmp_path / "packed")
    assert "model.layers.0.self_attn.qkv_proj.2" in reread.weights.modules
    assert reread.format == model.format
    assert_same_bits(logits_of(reread), logits_of(model))


def test_damaged_modules(checkpoint: Callable[[str], Path]) -> None:
    """A module missing, or one that ends within a part, is named."""
    model = apart(checkpoint("llama-256"), Q4_K_M)
    name, modules = "model.layers.0.self_attn.qkv_proj", model.weights.modules
    parts = [Linear("q", 256, 256), Linear("k", 128, 256), Linear("v", 128, 256)]

    def ask(modules: dict[str, PackedWeight]) -> list[PackedWeight]:
        return PackedWeights(modules, {}, "model", None, 1).matrix(name, parts)

    assert [w.M for w in ask(modules)] == [256, 128, 128]
    joined = {k: w for k, w in modules.items() if not k.startswith(name)}
    two = joined | {f"{name}.0": modules[f"{name}.0"], f"{name}.1": modules[f"{name}.0"]}
    assert [w.M for w in ask(two)] == [256, 256]
    for broken, word in (
        ({k: w for k, w in modules.items() if k != f"{name}.2"}, f"{name}.2"),
        (modules | {f"{name}.1": replace(modules[f"{name}.1"], M=100)}, "100x256"),
        (modules | {f"{name}.0": modules[f"{name}.1"]}, f"{name}.0"),
        (joined, name),
    ):
        failure(lambda broken=broken: ask(broken), ModelFormatError, word)
