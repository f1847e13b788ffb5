"""Bonsai's first generation: Qwen3, every matrix ternary or binary in groups of 128.

Its "unpacked" safetensors hold levels times scales as floats, GGUF files the blocks of several
types. All are one model, whose weights are those of the floats to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest
import torch
from checkpoint_factory import MINICPM, QWEN3, YARN, Recipe, linear_shapes
from helpers import assert_same_bits
from safetensors.torch import save_file
from test_against_transformers import load_reference, rounding_bound

from sterna import LLM, loading, ops
from sterna.gguf.tensor_names import gguf_name

gguf_factory = pytest.importorskip("gguf_factory", reason="needs the gguf package")
few_bit_blocks = pytest.importorskip("few_bit_blocks", reason="needs the gguf package")

GROUP = 128
# Nine groups a row: more sizes than rows of other families have.
RECIPE = replace(
    QWEN3, hidden=9 * GROUP, intermediate=10 * GROUP, heads=9, kv_heads=3, head_dim=GROUP,
    layers=1, tied=True, rope_scaling={"rope_type": "yarn", **YARN}, seed=50,
)  # fmt: skip


@dataclass(frozen=True)
class Bonsai:
    """A small one: levels int8 and scales f16 of each matrix, and the tensors that they make."""

    levels: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]
    tensors: dict[str, torch.Tensor]


def bonsai(
    dtype: torch.dtype, binary: bool, recipe: Recipe = RECIPE, tables: bool = True
) -> Bonsai:
    """Scales are such that floats of the dtype hold them. tables: embedding and head have some."""
    rng = np.random.default_rng(7)
    tensors = factory.tensors(replace(recipe, dtype=dtype))
    levels, scales = {}, {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not (tables or name.startswith("model.layers.")):
            continue
        M, K = tensor.shape
        drawn = 2 * rng.integers(0, 2, (M, K)) - 1 if binary else rng.integers(-1, 2, (M, K))
        size = 0.05 if "embed" in name else (1.5 / K) ** 0.5
        held = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16
        d = torch.from_numpy(size * (0.75 + 0.5 * rng.random((M, K // GROUP)))).to(held)
        levels[name] = drawn.astype(np.int8)
        scales[name] = d.to(torch.float16).numpy()
        real = d.float().repeat_interleave(GROUP, 1) * torch.from_numpy(levels[name]).float()
        tensors[name] = real.to(dtype)
        assert torch.equal(tensors[name].float(), real)
    return Bonsai(levels, scales, tensors)


def unpacked(folder: Path, model: Bonsai, dtype: torch.dtype, recipe: Recipe = RECIPE) -> Path:
    """Its safetensors."""
    factory.write(folder, replace(recipe, dtype=dtype))
    save_file(model.tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_unpacked(dtype: torch.dtype, binary: bool, tmp_path: Path) -> None:
    """Levels and scales are recovered, in the layers and the tied embedding; nothing is lost."""
    model = bonsai(dtype, binary)
    folder = unpacked(tmp_path / "m", model, dtype)
    llm = LLM(folder, threads=1)
    name = f"i{1 if binary else 2}:g{GROUP}"
    assert (llm.info()["format"], llm.info()["head"]) == (name, name)
    modules = loading.load(folder, cached=False).weights.modules
    for module, parts in {
        "model.embed_tokens": ["model.embed_tokens"],
        "model.layers.0.mlp.down_proj": ["model.layers.0.mlp.down_proj"],
        "model.layers.0.self_attn.qkv_proj": [f"model.layers.0.self_attn.{n}_proj" for n in "qkv"],
    }.items():
        assert modules[module].format == name
        real = torch.cat([model.tensors[f"{part}.weight"] for part in parts]).float().numpy()
        np.testing.assert_array_equal(ops.dequantize(modules[module]), real)


def test_logits_are_the_checkpoints(tmp_path: Path) -> None:
    """As floats they are those of transformers; as levels they differ by rounded activations."""
    dtype = torch.bfloat16
    folder = unpacked(tmp_path / "m", bonsai(dtype, binary=False), dtype)
    tokens = np.random.default_rng(2).integers(0, 256, 40).tolist()
    with torch.no_grad():
        expected = load_reference(folder)(torch.tensor([tokens])).logits.numpy()[0]
    floats = LLM(folder, format="f32", head="f32", kv_dtype="f32", threads=1, deterministic=True)
    assert np.abs(floats.logits(tokens) - expected).max() <= rounding_bound(RECIPE, expected)
    levels = LLM(folder, kv_dtype="f32", threads=1).logits(tokens)
    assert np.median(np.abs(levels - expected)) < 0.05 * expected.std()


def test_bitcpm4(tmp_path: Path) -> None:
    """MiniCPM's graph with layers that are ternary in groups, as pseudo-quantised files have them:
    the levels are recovered; embedding and head are floats."""
    dtype = torch.bfloat16
    recipe = replace(
        MINICPM, hidden=RECIPE.hidden, intermediate=RECIPE.intermediate, heads=9, kv_heads=3,
        head_dim=GROUP, layers=1,
    )  # fmt: skip
    folder = unpacked(tmp_path / "m", bonsai(dtype, False, recipe, False), dtype, recipe)
    llm = LLM(folder, kv_dtype="f32", threads=1)
    assert (llm.info()["format"], llm.info()["head"]) == (f"i2:g{GROUP}", "exact")
    tokens = np.random.default_rng(2).integers(0, 256, 40).tolist()
    with torch.no_grad():
        expected = load_reference(folder)(torch.tensor([tokens])).logits.numpy()[0]
    assert np.median(np.abs(llm.logits(tokens) - expected)) < 0.05 * expected.std()
    floats = LLM(folder, format="f32", head="f32", kv_dtype="f32", threads=1, deterministic=True)
    assert np.abs(floats.logits(tokens) - expected).max() <= rounding_bound(recipe, expected)


@pytest.mark.parametrize("kind", ["PQ2_0, ternary", "Q2_0 of 128, ternary", "PTQ1_0", "Q1_0"])
def test_gguf_is_the_same_model(kind: str, tmp_path: Path) -> None:
    """Every type of GGUF gives the bits of the unpacked safetensors."""
    model = bonsai(torch.float16, binary=kind == "Q1_0")
    folder = unpacked(tmp_path / "m", model, torch.float16)
    tiny = gguf_factory.Tiny(
        "qwen3", hidden=RECIPE.hidden, wide=RECIPE.intermediate, layers=1, heads=RECIPE.heads,
        kv_heads=RECIPE.kv_heads, head_dim=GROUP, rope_theta=RECIPE.rope_theta,
        keys={
            "qwen3.rope.scaling.type": "yarn", "qwen3.rope.scaling.factor": YARN["factor"],
            "qwen3.rope.scaling.original_context_length": YARN["original_max_position_embeddings"],
        },
    )  # fmt: skip
    tensors = []
    for name, tensor in model.tensors.items():
        at = gguf_name("qwen3", name)
        if tensor.ndim == 1:
            tensors.append((at, tuple(tensor.shape), 0, tensor.float().numpy().tobytes()))
            continue
        scales = model.scales[name].reshape(-1)
        raw, type_id = few_bit_blocks.encoded(kind, model.levels[name], scales, "128")
        tensors.append((at, tuple(tensor.shape), type_id, raw))
    head = {"general.architecture": "qwen3", **gguf_factory.metadata(tiny)}
    gguf_factory.raw_file(tmp_path / "x.gguf", head, tensors)
    tokens = list(range(60, 90))
    one, other = LLM(folder, threads=1), LLM(tmp_path / "x.gguf", threads=1)
    assert other.info()["format"] == few_bit_blocks.FEW_BITS[kind]
    assert_same_bits(other.logits(tokens), one.logits(tokens))


def test_three_trits_in_five_bits(tmp_path: Path) -> None:
    """Layers and table run as `t5` in the same groups, with the same bits."""
    dtype = torch.bfloat16
    folder = unpacked(tmp_path / "m", bonsai(dtype, binary=False), dtype)
    tokens = list(range(60, 90))
    t5 = LLM(folder, format="t5:g128", head="t5:g128", threads=1)
    assert (t5.info()["format"], t5.info()["head"]) == ("t5:g128", "t5:g128")
    assert_same_bits(t5.logits(tokens), LLM(folder, threads=1).logits(tokens))


def test_one_other_value(tmp_path: Path) -> None:
    """A matrix that is not what the rest is stays floats."""
    dtype = torch.bfloat16
    model = bonsai(dtype, binary=False)
    down = "model.layers.0.mlp.down_proj"
    model.tensors[f"{down}.weight"][-1, -1] = 0.375
    model.tensors["model.embed_tokens.weight"][100, 5] = 0.375
    modules = loading.load(unpacked(tmp_path / "m", model, dtype), cached=False).weights.modules
    assert modules[down].format == "bf16"
    assert modules["model.embed_tokens"].format == "bf16"
    assert modules["model.layers.0.self_attn.o_proj"].format == f"i2:g{GROUP}"


def test_sizes() -> None:
    """The shapes are those of which the tests above speak."""
    assert {k // GROUP for _, k in linear_shapes(RECIPE).values()} == {9, 10}
