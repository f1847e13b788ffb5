"""GPTQ's, AutoRound's and compressed-tensors' files run as they are: the same levels and scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory.stored import SMALL, Stored, small_llama, stored
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from sterna import loading, ops, train
from sterna.engine import Engine
from sterna.errors import ModelFormatError, NonFiniteError, UnsupportedModelError

Maker = Callable[[torch.Tensor], Stored]
Change = Callable[[torch.Tensor], torch.Tensor | None]
TOKENS = [[(11 * i + 5) % 64 for i in range(48)]]
UP = "model.layers.1.mlp.up_proj"


def words(codes: np.ndarray, bits: int, axis: int) -> torch.Tensor:
    """Codes in words of 32 bits along an axis, the first lowest: by their definition."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint64)
    grouped = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    made = sum(grouped[..., i] << np.uint64(bits * i) for i in range(32 // bits))
    made = np.moveaxis(made.astype(np.uint32).view(np.int32), -1, axis)
    return torch.from_numpy(np.ascontiguousarray(made))


def rounded(w: torch.Tensor, bits: int, group: int, sym: bool) -> tuple[np.ndarray, ...]:
    """(codes [M, K], zeros [M, G], scales f16 [M, G], the weights that they stand for); group 0: a
    row."""
    M, K = w.shape
    group = group or K
    blocks = w.numpy().reshape(M, K // group, group)
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    if sym:
        scale = np.abs(blocks).max(2) / (middle - 0.5)
        zeros = np.full(scale.shape, middle)
    else:
        low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
        scale = (high - low) / top
        zeros = np.rint(-low / scale)
    scale = scale.astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(blocks / scale[..., None]) + zeros[..., None], 0, top)
    values = (codes - zeros[..., None]).astype(np.float32) * scale[..., None]
    return codes.reshape(M, K).astype(int), zeros.astype(int), scale, values.reshape(M, K)


def gptq(bits: int, group: int, sym: bool, v2: bool, g_idx: bool = True) -> Maker:
    def make(w: torch.Tensor) -> Stored:
        codes, zeros, scale, values = rounded(w, bits, group, sym)
        stored = zeros if v2 else (zeros - 1) & ((1 << bits) - 1)
        out = {
            "qweight": words(codes.T, bits, 0),
            "qzeros": words(stored.T, bits, 1),
            "scales": torch.from_numpy(np.ascontiguousarray(scale.T)).half(),
        }
        if g_idx:
            out["g_idx"] = torch.arange(w.shape[1], dtype=torch.int32) // (group or w.shape[1])
        return out, torch.from_numpy(values)

    return make


def in_order(make: Maker, g_idx: str) -> Maker:
    """Groups of other k than neighbours, as by the size of activations; codes stay in place."""

    def reordered(w: torch.Tensor) -> Stored:
        K = w.shape[1]
        order = torch.from_numpy(np.random.default_rng(5).permutation(K))
        tensors, values = make(w[:, order].contiguous())
        back = torch.argsort(order)
        axis = 0 if "qweight" in tensors else 1
        name = "qweight" if axis == 0 else "weight_packed"
        stored = tensors[name].numpy().view(np.uint32)
        codes = np.stack([stored >> np.uint32(4 * i) & np.uint32(15) for i in range(8)], axis + 1)
        codes = codes.reshape(*(K if i == axis else n for i, n in enumerate(stored.shape)))
        codes = codes[back.numpy()] if axis == 0 else codes[:, back.numpy()]
        group = K // tensors["scales" if axis == 0 else "weight_scale"].shape[axis]
        tensors[name] = words(codes, 4, axis)
        tensors[g_idx] = (back // group).int()
        return tensors, values[:, back].contiguous()

    return reordered


def w8a8(w: torch.Tensor) -> Stored:
    scale = (w.abs().amax(1, keepdim=True) / 127.5).bfloat16()
    levels = (w / scale.float()).round().clamp(-128, 127)
    out = {"weight": levels.to(torch.int8), "weight_scale": scale}
    return out, levels * scale.float()


def w4a16(w: torch.Tensor) -> Stored:
    codes, _, scale, values = rounded(w, 4, 64, True)
    shape = torch.tensor(w.shape)
    packed = words(codes, 4, 1)
    return {"weight_packed": packed, "weight_scale": torch.from_numpy(scale).half(),
            "weight_shape": shape}, torch.from_numpy(values)  # fmt: skip


COMPRESSED = {"quant_method": "compressed-tensors"}
DYNAMIC = {"dynamic": True, "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token"}
CASES: dict[str, tuple[Maker, dict[str, Any], str]] = {
    "gptq": (gptq(4, 64, True, False), {"quant_method": "gptq", "sym": True}, "i4:g64"),
    "gptq-rows": (gptq(4, 0, True, False), {"quant_method": "gptq"}, "i4"),
    "gptq-zeros": (gptq(4, 32, False, False), {"quant_method": "gptq", "sym": False}, "q5_0"),
    "gptq-v2": (
        gptq(4, 32, False, True), {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
        "q5_0",
    ),
    "gptq-desc_act": (
        in_order(gptq(4, 32, False, False), "g_idx"), {"quant_method": "gptq", "desc_act": True},
        "f32",
    ),
    "gptq-2": (gptq(2, 64, True, False), {"quant_method": "gptq"}, "i4:g64"),
    "gptq-8": (gptq(8, 64, True, False), {"quant_method": "gptq"}, "i8:g64"),
    "autoround": (
        gptq(4, 64, True, True, False), {"quant_method": "auto-round", "sym": True}, "i4:g64"
    ),
    "autoround-zeros": (
        gptq(4, 32, False, True, False),
        {"quant_method": "auto-round", "packing_format": "auto_round", "sym": False}, "q5_0",
    ),
    "autoround-gptq": (
        gptq(4, 32, False, False, False),
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, "q5_0",
    ),
    "w8a8": (
        w8a8, COMPRESSED | {"format": "int-quantized", "config_groups":
        {"group_0": {"input_activations": DYNAMIC}}}, "i8",
    ),
    "w4a16": (w4a16, COMPRESSED | {"format": "pack-quantized"}, "i4:g64"),
    "w4a16-actorder": (
        in_order(w4a16, "weight_g_idx"), COMPRESSED | {"format": "pack-quantized"}, "f32",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


def quantised(source: Path, to: Path, name: str) -> tuple[Path, Path]:
    """(the folder of a case, a folder of the floats that it stands for)."""
    make, settings, _ = CASES[name]
    return stored(source, to, make, settings)


def perplexity(folder: Path, format: str | None = None) -> float:
    engine = Engine(loading.load(folder, format=format, cached=False), threads=1, kv_dtype="f32")
    logits = engine.logits(TOKENS)[0].astype(np.float64)[:-1]
    chosen = logits[np.arange(len(logits)), TOKENS[0][1:]]
    return float(np.exp((np.log(np.exp(logits).sum(1)) - chosen).mean()))


@pytest.mark.parametrize("name", CASES)
def test_files_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """The same weights to the bit; in a float format the same model; rounding x moves little."""
    packed, plain = quantised(floats, tmp_path, name)
    loaded = loading.load(packed, cached=False)
    assert loaded.format == CASES[name][2]
    weights = load_file(plain / "model.safetensors")
    down = "model.layers.0.mlp.down_proj"
    got = ops.dequantize(loaded.weights.modules[down])
    assert_same_bits(got + 0.0, weights[f"{down}.weight"].numpy() + 0.0)
    expected = perplexity(plain, "f32")
    assert perplexity(packed, "f32") == expected
    assert abs(np.log(perplexity(packed) / expected)) < 1e-2  # of activations in int8


def damage(folder: Path, suffix: str, change: Change) -> None:
    tensors = load_file(folder / "model.safetensors")
    made = change(tensors.pop(f"{UP}.{suffix}", torch.zeros(1)))
    if made is not None:
        tensors[f"{UP}.{suffix}"] = made.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


BAD: list[tuple[str, str, Change, type, str]] = [
    ("gptq", "qweight", lambda t: t[:-1], ModelFormatError, "qweight"),
    ("gptq", "qweight", lambda t: t.long(), ModelFormatError, "I64"),
    ("gptq", "scales", lambda t: t[:, :-1], ModelFormatError, "191"),
    ("gptq", "scales", lambda t: t / 0, NonFiniteError, "scales"),
    ("gptq", "qzeros", lambda _: None, ModelFormatError, "qzeros"),
    ("gptq", "g_idx", lambda t: t + 1, ModelFormatError, "0..1"),
    ("gptq", "g_idx", lambda t: t[:-1], ModelFormatError, "g_idx"),
    ("w8a8", "weight_scale", lambda t: t.squeeze(1)[:-1], ModelFormatError, "weight_scale"),
    ("w8a8", "weight", lambda t: t[:, :-1], ModelFormatError, "192, 127"),
    ("w8a8", "weight_zero_point", lambda t: t + 1, ModelFormatError, "symmetric"),
    ("w8a8", "input_scale", lambda t: t + 1, ModelFormatError, "dynamic"),
    ("w4a16", "weight_packed", lambda t: t[:, :-1], ModelFormatError, "weight_packed"),
    ("w4a16", "weight_shape", lambda t: t + 1, ModelFormatError, "193"),
    ("w4a16", "weight_g_idx", lambda _: torch.zeros(128).int() - 1, ModelFormatError, "-1"),
]


@pytest.mark.parametrize(("case", "suffix", "change", "kind", "word"), BAD)
def test_damaged(
    case: str, suffix: str, change: Any, kind: type, word: str, floats: Path, tmp_path: Path
) -> None:
    """Refused by name."""
    packed, _ = quantised(floats, tmp_path, case)
    damage(packed, suffix, change)
    failure(lambda: loading.load(packed, cached=False), kind, f"{UP}.{suffix}", word)


def test_schemes_that_are_not_read(floats: Path, tmp_path: Path) -> None:
    """Layouts that Sterna does not know, and activations with a scale of the file."""
    packed, _ = quantised(floats, tmp_path, "w8a8")
    config = json.loads((packed / "config.json").read_text())
    for settings, word in (
        (COMPRESSED | {"format": "marlin-24"}, "marlin-24"),
        (COMPRESSED | {"config_groups": {"a": {"input_activations": DYNAMIC | {"dynamic": False}}}},
         "dynamic"),
        ({"quant_method": "aqlm"}, "aqlm"),
    ):  # fmt: skip
        (packed / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
        failure(lambda: loading.load(packed, cached=False), UnsupportedModelError, word)


def test_rotated_inputs(tmp_path: Path) -> None:
    """GPTQModel's `rotation`: down_proj was multiplied by a Hadamard matrix, and so are inputs."""
    size, source = 128, tmp_path / "floats"
    torch.manual_seed(3)
    config = LlamaConfig(**{**SMALL.to_dict(), "intermediate_size": size})
    LlamaForCausalLM(config).save_pretrained(source)
    i = np.arange(size)
    signs = [[(-1.0) ** bin(a & b).count("1") for b in i] for a in i]
    H = torch.tensor(signs, dtype=torch.float64) / size**0.5
    settings = {"quant_method": "gptq", "rotation": "hadamard", "sym": True}
    packed, plain = stored(source, tmp_path, gptq(8, 32, True, False), settings)
    file = plain / "model.safetensors"
    weights = load_file(file)
    for name, w in weights.items():
        if "down_proj" in name:  # what the model means, without a rotation at run time
            weights[name] = (w.double() @ H).float()
    save_file(weights, file, {"format": "pt"})
    expected, got = perplexity(plain, "f32"), perplexity(packed, "f32")
    assert abs(np.log(got / expected)) < 1e-5
    edited = json.loads((packed / "config.json").read_text())
    for fields, word in (
        ({"intermediate_size": 96}, "power of two"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3"),
    ):  # fmt: skip
        (packed / "config.json").write_text(json.dumps(edited | fields))
        failure(lambda: loading.load(packed, cached=False), UnsupportedModelError, "rotation", word)
    edited["quantization_config"].pop("rotation")
    (packed / "config.json").write_text(json.dumps(edited))
    assert abs(np.log(perplexity(packed, "f32") / expected)) > 1e-3  # which is another model


@pytest.mark.parametrize("make", [train.DenseShiftLinear.of, train.S3Linear.of])
def test_latents_of_shifts(make: Any, tmp_path: Path) -> None:
    """A folder that save_pretrained writes during training has the bits of its export."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(SMALL)
    train.prepare(model, make)
    with torch.no_grad():
        model.get_submodule(UP).scale[3] *= -1  # its size counts
    train.export(model, tmp_path / "out")
    model.save_pretrained(tmp_path / "latents")
    found = [
        Engine(loading.load(tmp_path / name, cached=False), threads=1).logits(TOKENS)[0]
        for name in ("out", "latents")
    ]
    assert_same_bits(*found)
    damage(tmp_path / "latents", "w_2", lambda t: t * torch.nan)
    failure(lambda: loading.load(tmp_path / "latents", cached=False), NonFiniteError, f"{UP}.w_2")
