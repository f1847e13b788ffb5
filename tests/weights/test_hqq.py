"""HQQ's files run as they are: its layout written out, and by itself where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory.stored import Stored, small_llama, stored
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file

from sterna import loading, ops
from sterna.engine import Engine
from sterna.errors import ModelFormatError, NonFiniteError

SETTINGS = {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]}
DOWN, UP = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"
TOKENS = [[(11 * i + 5) % 64 for i in range(20)]]
PER = {"8bit_u8": 1, "4bit_u8": 2, "3bit_32": 10, "2bit_u8": 4, "1bit_u8": 8}


def packed(codes: torch.Tensor, packing: str) -> torch.Tensor:
    """Rows [i n, (i + 1) n) of codes, the first highest."""
    count = PER[packing]
    padded = torch.zeros(-(-len(codes) // count) * count, codes.shape[1], dtype=torch.int32)
    padded[: len(codes)] = codes
    bits = int(packing[0])
    words = sum(part << bits * (count - 1 - i) for i, part in enumerate(padded.chunk(count)))
    return words if packing == "3bit_32" else words.to(torch.uint8)


def text(name: str) -> torch.Tensor:
    return torch.tensor(list(name.encode()), dtype=torch.uint8)


def hqq(
    bits: int, group: int, axis: int = 1, whole: bool = False, viewed: torch.dtype | None = None,
    dtype: torch.dtype = torch.float16,
) -> Callable[[torch.Tensor], Stored]:  # fmt: skip
    """A quantiser without HQQ's search for zeros."""

    def make(w: torch.Tensor) -> Stored:
        rows = w.reshape(-1, group) if axis else w.reshape(group, -1)
        low, high = rows.amin(axis, keepdim=True), rows.amax(axis, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).to(dtype)
        zero = (-low / scale.float()).to(dtype)
        zero = zero.round() if whole else zero
        s, z = scale.float(), zero.float()
        codes = (rows / s + z).round().clamp(0, 2**bits - 1)
        packing = {5: "8bit_u8", 6: "8bit_u8", 3: "3bit_32"}.get(bits, f"{bits}bit_u8")
        words = packed(codes.int(), packing)
        tensors = {
            "W_q": words if viewed is None else words.view(viewed), "scale": scale, "zero": zero,
            "nbits": torch.tensor(bits, dtype=torch.int32),
            "group_size": torch.tensor(group, dtype=torch.int32),
            "axis": torch.tensor(axis, dtype=torch.int32), "shape": torch.tensor(w.shape),
            "packing": text(packing), "view_as_float": torch.tensor(int(viewed is not None)).byte(),
            "unpack_view_dtype": text("torch.uint8"), "compute_dtype": text("torch.float16"),
            **{
                name: torch.tensor(value, dtype=torch.uint8)
                for name, value in {
                    "quant_scale": 0, "quant_zero": 0, "offload_meta": 0, "channel_wise": 1,
                    "encoded_state_dict": 1, "stores_quant_config": 1, "optimize": 1,
                    "round_zero": 0,
                }.items()
            },
        }  # fmt: skip
        return tensors, ((codes - z) * s).reshape(w.shape)

    return make


CASES: dict[str, tuple[Callable[[torch.Tensor], Stored], str]] = {
    "8": (hqq(8, 64), "f32"),
    "6": (hqq(6, 64), "f32"),
    "4": (hqq(4, 64), "f32"),
    "4-bf16": (hqq(4, 32, dtype=torch.bfloat16), "f32"),
    "4-columns": (hqq(4, 64, axis=0), "f32"),
    "4-viewed": (hqq(4, 64, viewed=torch.float16), "f32"),
    "4-across-rows": (hqq(4, 256), "f32"),
    "3": (hqq(3, 64), "f32"),
    "3-columns": (hqq(3, 64, axis=0), "f32"),
    "3-viewed": (hqq(3, 32, viewed=torch.float32), "f32"),
    "2": (hqq(2, 16), "f32"),
    "1": (hqq(1, 64), "f32"),
    "4-whole": (hqq(4, 64, whole=True), "i8:g64"),
    "2-whole": (hqq(2, 32, whole=True), "i4:g32"),
    "4-whole-columns": (hqq(4, 64, axis=0, whole=True), "f32"),
}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


def logits(folder: Path, format: str | None = None) -> np.ndarray:
    engine = Engine(loading.load(folder, format=format, cached=False), threads=1, kv_dtype="f32")
    return np.asarray(engine.logits(TOKENS)[0])


@pytest.mark.parametrize("name", CASES)
def test_files_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """The same weights to the bit; in a float format the same model."""
    make, format = CASES[name]
    files, plain = stored(floats, tmp_path, make, SETTINGS)
    loaded = loading.load(files, cached=False)
    assert loaded.format == format
    weights = load_file(plain / "model.safetensors")
    got = ops.dequantize(loaded.weights.modules[DOWN])
    assert_same_bits(got + 0.0, weights[f"{DOWN}.weight"].numpy() + 0.0)
    assert_same_bits(logits(files, "f32"), logits(plain, "f32"))


BAD: list[tuple[str, str, Callable[[torch.Tensor], Any], type, str]] = [
    ("4", "W_q", lambda t: t[:-1], ModelFormatError, "192, 64"),
    ("4", "W_q", lambda t: t.int(), ModelFormatError, "I32"),
    ("4-viewed", "W_q", lambda t: t.view(torch.uint8), ModelFormatError, "U8"),
    ("3", "W_q", lambda t: t.float(), ModelFormatError, "F32"),
    ("1", "packing", lambda _: text("3bit_u8"), ModelFormatError, "3bit_u8"),
    ("1", "packing", lambda _: text("x" * 65), ModelFormatError, "name"),
    ("4", "packing", lambda _: None, ModelFormatError, "packing"),
    ("4", "axis", lambda t: t + 2, ModelFormatError, "0 or 1"),
    ("4", "axis", lambda t: t.float(), ModelFormatError, "whole"),
    ("4", "group_size", lambda t: t + 1, ModelFormatError, "divisor"),
    ("4", "group_size", lambda t: t * 0, ModelFormatError, "divisor"),
    ("4", "group_size", lambda t: t.repeat(2), ModelFormatError, "whole"),
    ("4", "scale", lambda t: t[:-1], ModelFormatError, "scale"),
    ("4", "scale", lambda t: t / 0, NonFiniteError, "finite"),
    ("4", "zero", lambda t: t.int(), ModelFormatError, "I32"),
    ("4", "scale_q", lambda t: t, ModelFormatError, "quant_scale=False"),
]


@pytest.mark.parametrize(("case", "part", "change", "kind", "word"), BAD)
def test_damaged(
    case: str, part: str, change: Any, kind: type, word: str, floats: Path, tmp_path: Path
) -> None:
    """Refused by name."""
    files, _ = stored(floats, tmp_path, CASES[case][0], SETTINGS)
    tensors = load_file(files / "model.safetensors")
    name = f"{UP}.{part}"
    made = change(tensors.pop(name, torch.zeros(1)))
    if made is not None:
        tensors[name] = made.contiguous()
    save_file(tensors, files / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(files, cached=False), kind, name, word)


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_hqq_writes(bits: int, axis: int, floats: Path, tmp_path: Path) -> None:
    """Where it is installed: tensors of its own layers, dequantised by itself."""
    quantize = pytest.importorskip("hqq.core.quantize", reason="needs the hqq package")
    layers = dict[str, Any]()

    def make(w: torch.Tensor) -> Stored:
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        linear.weight.data = w
        config = quantize.BaseQuantizeConfig(nbits=bits, group_size=64, axis=axis)
        layer = quantize.HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu")
        layers[str(len(layers))] = layer
        return dict(layer.state_dict()), layer.dequantize().detach()

    files, plain = stored(floats, tmp_path, make, SETTINGS)
    assert_same_bits(logits(files, "f32"), logits(plain, "f32"))
