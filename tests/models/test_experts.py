"""Experts: checkpoints in every dress, bad input.

Logits against transformers: test_against_transformers.py; over units, threads, chunks and batches:
test_determinism.py, test_digests.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_MOE, RECIPES, Recipe, config, tensors, write
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file

from sterna import loading
from sterna.convert import convert
from sterna.engine import Engine
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)

NAMES = [name for name, recipe in RECIPES.items() if recipe.experts]
PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 256, 150)]


def engine(model: loading.Model, **options: Any) -> Engine:
    return Engine(model, threads=2, kv_dtype="f32", **options)


# --------------------------------------------------------------------------------- checkpoints


ROUTERS = (".gate", ".router", ".router.proj")


@pytest.mark.parametrize("format", [None, "i8", "q4_0", "t5"])
@pytest.mark.parametrize("name", NAMES)
def test_packed_directories(name: str, format: str | None, tmp_path: Path) -> None:
    """Saved, converted and loaded again: the bits of the checkpoint. The router stays as it is."""
    source = write(tmp_path / "m", RECIPES[name])
    model = loading.load(source, format=format)
    expected = engine(model).logits([PROMPT])[0]
    loading.save(model, tmp_path / "saved")
    convert(source, tmp_path / "converted", format)
    for folder in ("saved", "converted"):
        again = loading.load(tmp_path / folder)
        assert_same_bits(engine(again).logits([PROMPT])[0], expected)
        routers = [w for n, w in again.weights.modules.items() if n.endswith(ROUTERS)]
        assert routers
        assert not any(w.format.integer for w in routers)


def test_a_packed_directory_in_another_format(tmp_path: Path) -> None:
    """Floats are rounded as those of the checkpoint are, each expert's in its own tiles."""
    source = write(tmp_path / "m", QWEN3_MOE)
    loading.save(loading.load(source), tmp_path / "packed")
    got = engine(loading.load(tmp_path / "packed", format="i1")).logits([PROMPT])[0]
    assert_same_bits(got, engine(loading.load(source, format="i1")).logits([PROMPT])[0])


def test_what_a_token_needs(checkpoint: Callable[[str], Path]) -> None:
    """Parameters count once, bytes of a token those of its own experts."""
    model = loading.load(checkpoint("qwen3_moe"), head="f32")
    assert model.n_params == sum(t.numel() for t in tensors(QWEN3_MOE).values() if t.dim() == 2)
    ffn = 3 * 96 * 96 * QWEN3_MOE.layers
    assert model.n_params - model.n_active_params == (7 - 3) * ffn
    ops_of = model.graph.linears
    read = [op.weight.nbytes * (3 / 7 if "experts" in op.name else 1) for op in ops_of]
    assert model.weight_bytes_per_token == round(sum(read))


def fused(recipe: Recipe) -> dict[str, torch.Tensor]:
    """The experts of each layer as one tensor each."""
    stored = tensors(recipe)
    for i in range(recipe.layers):
        mlp = f"model.layers.{i}.mlp.experts"
        parts = {
            part: torch.stack([stored.pop(f"{mlp}.{e}.{part}_proj.weight") for e in range(7)])
            for part in ("gate", "up", "down")
        }
        stored[f"{mlp}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], 1)
        stored[f"{mlp}.down_proj"] = parts["down"]
    return stored


@pytest.mark.parametrize("format", [None, "q4_1"])
def test_one_tensor_of_all_experts(
    format: str | None, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The bits of one for each."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    save_file(fused(QWEN3_MOE), folder / "model.safetensors", {"format": "pt"})
    got = engine(loading.load(folder, format=format)).logits([PROMPT])[0]
    expected = engine(loading.load(checkpoint("qwen3_moe"), format=format)).logits([PROMPT])[0]
    assert_same_bits(got, expected)


LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def mxfp4(w: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Weights [E, M, K] as OCP MXFP4, as gpt-oss has them: blocks, scales, and what they stand for,
    number by number."""
    E, M, K = w.shape
    blocks = w.reshape(E, M, K // 32, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1))).astype(int) - 2
    scales = np.ldexp(np.float32(1), exponents)[..., None].astype(np.float32)
    codes = np.abs(blocks[..., None] / scales[..., None] - LEVELS).argmin(-1)
    bytes_ = codes[..., 0::2] | codes[..., 1::2] << 4
    real = (LEVELS[codes] * scales).reshape(E, M, K)
    return (
        torch.from_numpy(np.ascontiguousarray(bytes_, np.uint8)),
        torch.from_numpy(np.ascontiguousarray(exponents + 127, np.uint8)),
        real,
    )


def mxfp4_checkpoint(folder: Path, recipe: Recipe) -> tuple[Path, Path]:
    """gpt-oss as it is published, and the same as float32."""
    packed, real = dict(tensors(recipe)), dict(tensors(recipe))
    for name in [n for n in packed if n.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales, values = mxfp4(packed.pop(name).float().transpose(1, 2).numpy())
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        real[name] = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 2, 1)))
    floats = {name: w.float() if w.is_floating_point() else w for name, w in real.items()}
    stored = {"packed": packed, "floats": floats}
    for which, weights in stored.items():
        write(folder / which, recipe)
        save_file(weights, folder / which / "model.safetensors", {"format": "pt"})
    path = folder / "packed" / "config.json"
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    path.write_text(json.dumps({**config(recipe), "quantization_config": settings}))
    return folder / "packed", folder / "floats"


def test_mxfp4(tmp_path: Path) -> None:
    """Blocks stay what they are; as floats they are the weights that they stand for."""
    packed, floats = mxfp4_checkpoint(tmp_path, RECIPES["gpt_oss"])
    model = loading.load(packed)
    assert {w.format.name for n, w in model.weights.modules.items() if "experts" in n} == {"mxfp4"}
    expected = engine(loading.load(floats), deterministic=True).logits([PROMPT])[0]
    exact = loading.load(packed, format="f32")
    assert_same_bits(engine(exact, deterministic=True).logits([PROMPT])[0], expected)
    got = engine(model).logits([PROMPT])[0]
    assert np.median(np.abs(got - expected).max(1)) < 0.15 * expected.std()
    loading.save(model, tmp_path / "saved")
    convert(packed, tmp_path / "converted", None)
    for folder in ("saved", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], got)
    for asked in ("q4_0", "i8"):
        load = partial(loading.load, packed, format=asked)
        failure(load, RequestError, "mxfp4", asked)


@pytest.mark.parametrize(
    ("suffix", "change", "kind", "words"),
    [
        ("blocks", lambda w: w[:, :, :, :8].clone(), ModelFormatError, ("[5, 128, 3, 16]",)),
        ("scales", lambda w: w[:4].clone(), ModelFormatError, ("[5, 128, 3]", "[4, 128, 3]")),
        ("scales", lambda w: w.float(), ModelFormatError, ("U8", "F32")),
        ("scales", lambda w: None, ModelFormatError, ("no such tensor",)),
        ("scales", lambda w: w.index_fill(0, torch.tensor(2), 255), NonFiniteError, ("expert 2",)),
        ("bias", lambda w: w[:, :5].clone(), ModelFormatError, ("[5, 128]", "[5, 5]")),
        ("bias", lambda w: None, ModelFormatError, ("gate_proj.bias", "no such tensor")),
    ],
)
def test_bad_mxfp4(
    suffix: str, change: Callable[[torch.Tensor], torch.Tensor | None], kind: type[SternaError],
    words: tuple[str, ...], tmp_path: Path,
) -> None:  # fmt: skip
    """One line that names the file, the tensor, the rule and the value."""
    folder, _ = mxfp4_checkpoint(tmp_path, RECIPES["gpt_oss"])
    stored = load_file(folder / "model.safetensors")
    name = f"model.layers.1.mlp.experts.gate_up_proj_{suffix}"
    changed = change(stored.pop(name))
    if changed is not None:
        stored[name] = changed
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(folder), kind, str(folder), *words)


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"num_experts_per_tok": 8},
            ModelFormatError,
            ("num_experts_per_tok", "num_experts=7", "8"),
        ),
        ({"num_experts_per_tok": 0}, ModelFormatError, ("num_experts_per_tok", "0")),
        ({"num_experts": None}, ModelFormatError, ("num_experts", "none")),
        ({"num_experts": 8}, ModelFormatError, ("mlp.gate.weight", "[8, 96]", "[7, 96]")),
        ({"num_experts": 5000}, ModelFormatError, ("num_experts", "1..4096", "5000")),
        ({"moe_intermediate_size": 64}, ModelFormatError, ("experts.0.gate_proj", "[64, 96]")),
        ({"mlp_only_layers": [0]}, ModelFormatError, ("model.layers.0.mlp.gate_proj.weight",)),
        ({"mlp_only_layers": "0"}, ModelFormatError, ("mlp_only_layers", "numbers")),
        ({"decoder_sparse_step": 2}, ModelFormatError, ("model.layers.0.mlp.gate_proj.weight",)),
        ({"norm_topk_prob": 1}, ModelFormatError, ("norm_topk_prob", "true or false")),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_bad_config(
    change: dict[str, Any], kind: type[SternaError], words: tuple[str, ...], tmp_path: Path
) -> None:
    """One line that names the file, the field or tensor, the rule and the value."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    (folder / "config.json").write_text(json.dumps({**config(QWEN3_MOE), **change}))
    failure(lambda: loading.load(folder), kind, str(folder), *words)


LAYER = "model.layers.1.mlp."


@pytest.mark.parametrize(
    ("name", "tensor", "kind", "words"),
    [
        ("gate.weight", None, ModelFormatError, ("a tensor", "none of this name")),
        ("experts.3.up_proj.weight", None, ModelFormatError, ("a tensor", "none of this name")),
        ("experts.6.down_proj.weight", torch.zeros(96, 95), ModelFormatError, ("[96, 95]",)),
        (
            "experts.0.gate_proj.weight",
            torch.full((96, 96), torch.nan),
            NonFiniteError,
            ("finite",),
        ),
        (
            "experts.7.gate_proj.weight",
            torch.zeros(96, 96),
            UnsupportedModelError,
            ("none of this",),
        ),
        ("experts.2.up_proj.bias", torch.ones(96), UnsupportedModelError, ("no bias",)),
    ],
)
def test_bad_tensors(
    name: str, tensor: torch.Tensor | None, kind: type[SternaError], words: tuple[str, ...],
    tmp_path: Path,
) -> None:  # fmt: skip
    """A router that is missing, an expert's tensor of another shape, one expert too many."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    stored = tensors(QWEN3_MOE)
    stored.pop(LAYER + name, None)
    if tensor is not None:
        stored[LAYER + name] = tensor
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(folder), kind, str(folder), LAYER + name, *words)


def test_a_fused_tensor_of_another_shape(tmp_path: Path) -> None:
    """All experts' rows must be there."""
    folder = write(tmp_path / "m", QWEN3_MOE)
    stored = fused(QWEN3_MOE)
    name = "model.layers.0.mlp.experts.down_proj"
    stored[name] = stored[name][:6].clone()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(folder), ModelFormatError, name, "[7, 96, 96]", "[6, 96, 96]")
