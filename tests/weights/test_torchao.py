"""torchao's files run as they are: its layouts written out, and by itself where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory.stored import Stored, small_llama, stored
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from sterna import loading, ops
from sterna.engine import Engine
from sterna.errors import ModelFormatError, NonFiniteError

SETTINGS = {"quant_method": "torchao", "quant_type": {"default": {}}}
UP = "model.layers.0.mlp.up_proj"
TOKENS = [[(11 * i + 5) % 64 for i in range(20)]]


def affine(bits: int, group: int, symmetric: bool, zero_type: torch.dtype = torch.int8) -> Any:
    """IntxUnpackedToInt8Tensor, and with one group Int8Tensor: scale (q - zero)."""

    def make(w: torch.Tensor) -> Stored:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        blocks = w.reshape(w.shape[0], -1, group or w.shape[1])
        if symmetric:
            scale = (blocks.abs().amax(2) / high).bfloat16().float()
            zero = torch.zeros_like(scale)
        else:
            scale = ((blocks.amax(2) - blocks.amin(2)) / (high - low)).bfloat16().float()
            zero = (low - blocks.amin(2) / scale).round().clamp(low, high)
            zero += 0.25 * (zero_type != torch.int8)
        q = (blocks / scale[..., None] + zero[..., None]).round().clamp(low, high)
        values = (q - zero[..., None]) * scale[..., None]
        tensors = {
            "qdata": q.reshape(w.shape).to(torch.int8), "scale": scale.bfloat16(),
            "zero_point": zero.to(zero_type),
        }  # fmt: skip
        return tensors, values.reshape(w.shape)

    return make


def rows8(w: torch.Tensor) -> Stored:
    """Int8Tensor without zero points."""
    tensors, values = affine(8, 0, True)(w)
    return {"qdata": tensors["qdata"], "scale": tensors["scale"].float()}, values


def int4(added: bool) -> Any:
    """Int4Tensor: even k in the low half, scales [groups, M], a zero that is added."""

    def make(w: torch.Tensor) -> Stored:
        tensors, _ = affine(4, 64, True)(w)
        q, scale = tensors["qdata"], tensors["scale"].float()
        zero = (0.125 * scale if added else torch.zeros_like(scale)).bfloat16()
        blocks = q.reshape(w.shape[0], -1, 64).float()
        values = blocks * scale[..., None] + zero.float()[..., None]
        packed = (q[:, ::2] & 15) | (q[:, 1::2] << 4)
        return {"qdata": packed, "scale": scale.t().bfloat16(), "zero_point": zero.t()}, (
            values.reshape(w.shape)
        )

    return make


def trits(w: torch.Tensor) -> Stored:
    """BitNetPacked2bitLinearWeight."""
    scale = w.abs().mean()
    t = (w / scale).round().clamp(-1, 1).to(torch.int8)
    packed = t[:, ::4] << 6 | (t[:, 1::4] & 3) << 4 | (t[:, 2::4] & 3) << 2 | (t[:, 3::4] & 3)
    return {"int_data": packed, "scale": scale}, t * scale


CASES: dict[str, tuple[Callable[[torch.Tensor], Stored], str]] = {
    "int8-rows": (rows8, "i8"),
    "int8-groups": (affine(8, 64, True), "i8:g64"),
    "int4-groups": (affine(4, 32, True), "i4:g32"),
    "int4-zeros": (affine(4, 32, False), "i8:g32"),
    "int4-rows": (affine(4, 0, True), "i4"),
    "int2-rows": (affine(2, 0, True), "i2"),
    "int2-groups-zeros": (affine(2, 32, False), "i4:g32"),
    "float-zeros": (affine(4, 32, False, torch.float32), "f32"),
    "int4-packed": (int4(False), "i4:g64"),
    "int4-packed-zeros": (int4(True), "f32"),
    "bitnet": (trits, "i2"),
}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


def quantised(source: Path, to: Path, name: str) -> tuple[Path, Path]:
    """(the folder of a case, a folder of the floats that it stands for)."""
    return stored(source, to, CASES[name][0], SETTINGS, "_weight_")


def logits(folder: Path, format: str | None = None) -> np.ndarray:
    engine = Engine(loading.load(folder, format=format, cached=False), threads=1, kv_dtype="f32")
    return np.asarray(engine.logits(TOKENS)[0])


@pytest.mark.parametrize("name", CASES)
def test_files_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """The same weights to the bit; in a float format the same model."""
    packed, plain = quantised(floats, tmp_path, name)
    loaded = loading.load(packed, cached=False)
    assert loaded.format == CASES[name][1]
    weights = load_file(plain / "model.safetensors")
    got = ops.dequantize(loaded.weights.modules["model.layers.0.mlp.down_proj"])
    assert_same_bits(got + 0.0, weights["model.layers.0.mlp.down_proj.weight"].numpy() + 0.0)
    if name != "bitnet":
        assert_same_bits(logits(packed, "f32"), logits(plain, "f32"))


BAD: list[tuple[str, str, Callable[[torch.Tensor], Any], type, str]] = [
    ("int8-rows", "qdata", lambda t: t[:, :-1], ModelFormatError, "192, 127"),
    ("int8-rows", "qdata", lambda t: t.int(), ModelFormatError, "GPU"),
    ("int8-rows", "scale", lambda t: t[:-1], ModelFormatError, "191"),
    ("int8-rows", "scale", lambda t: t / 0, NonFiniteError, "finite"),
    ("int8-rows", "scale", lambda _: None, ModelFormatError, "scale"),
    ("int8-rows", "act_pre_scale", lambda t: t, ModelFormatError, "activations"),
    ("int4-packed", "scale_and_zero", lambda t: t, ModelFormatError, "another layout"),
    ("int4-packed", "scale", lambda t: t.t(), ModelFormatError, "groups of K"),
    ("int4-packed", "zero_point", lambda t: t[:-1], ModelFormatError, "zero points"),
    ("int4-packed", "zero_point", lambda t: t.bool(), ModelFormatError, "BOOL"),
    ("bitnet", "int_data", lambda t: t | 0x55 ^ -1, ModelFormatError, "code"),
    ("bitnet", "int_data", lambda t: t[:, 1:], ModelFormatError, "31"),
    ("bitnet", "scale", lambda t: t.repeat(2), ModelFormatError, "one float"),
]


@pytest.mark.parametrize(("case", "part", "change", "kind", "word"), BAD)
def test_damaged(
    case: str, part: str, change: Any, kind: type, word: str, floats: Path, tmp_path: Path
) -> None:
    """Refused by name."""
    packed, _ = quantised(floats, tmp_path, case)
    tensors = load_file(packed / "model.safetensors")
    name = f"{UP}._weight_{part}"
    made = change(tensors.pop(name, torch.zeros(1)))
    if made is not None:
        tensors[name] = made.contiguous()
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(packed, cached=False), kind, name, word)


def test_what_torchao_writes(floats: Path, tmp_path: Path) -> None:
    """Where it is installed: its own tensors, flattened by itself, dequantised by itself."""
    quantization = pytest.importorskip("torchao.quantization")
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    granular = pytest.importorskip("torchao.quantization.granularity")
    rows, groups = granular.PerAxis(0), granular.PerGroup(32)
    for i, (config, expected) in enumerate(
        (
            (quantization.Int8WeightOnlyConfig(), "i8"),
            (quantization.Int8DynamicActivationInt8WeightConfig(), "i8"),
            (quantization.IntxWeightOnlyConfig(torch.int4, groups), "i4:g32"),
            (quantization.IntxWeightOnlyConfig(torch.int2, rows), "i4"),
            (quantization.IntxWeightOnlyConfig(torch.int3, groups), "i4:g32"),
            (quantization.Int8DynamicActivationIntxWeightConfig(torch.int4, groups), "i4:g32"),
        )
    ):
        model = LlamaForCausalLM.from_pretrained(floats, dtype=torch.bfloat16)
        quantization.quantize_(
            model, config, filter_fn=lambda m, name: isinstance(m, torch.nn.Linear)
            and "lm_head" not in name,
        )  # fmt: skip
        folder = tmp_path / str(i)
        folder.mkdir()
        tensors, metadata = support.flatten_tensor_state_dict(model.state_dict())
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors",
                  metadata)  # fmt: skip
        settings = json.loads((floats / "config.json").read_text())
        settings |= {"quantization_config": SETTINGS}
        (folder / "config.json").write_text(json.dumps(settings))
        loaded = loading.load(folder, cached=False)
        assert loaded.format == expected
        weight: Any = model.get_submodule("model.layers.0.mlp.down_proj").weight
        theirs = weight.dequantize().float().detach().numpy()  # rounded to bfloat16
        ours = ops.dequantize(loaded.weights.modules["model.layers.0.mlp.down_proj"])
        np.testing.assert_allclose(ours, theirs, rtol=2**-7, atol=0)


def test_masters_of_its_bitnet_training(floats: Path, tmp_path: Path) -> None:
    """Where it is installed: saved as floats, they are rounded as its forward pass rounds them."""
    quantization = pytest.importorskip("torchao.quantization")
    bitnet = pytest.importorskip("torchao.prototype.quantized_training.bitnet")
    model = LlamaForCausalLM.from_pretrained(floats, dtype=torch.float32)
    config = bitnet.BitNetTrainingConfig()
    quantization.quantize_(model, config, filter_fn=lambda _, name: "_proj" in name)
    state = {name: getattr(p, "_data", p) for name, p in model.state_dict().items()}
    masters = state[f"{UP}.weight"].detach()
    save_file({n: t.detach().clone() for n, t in state.items()}, tmp_path / "model.safetensors")
    online = {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    settings = json.loads((floats / "config.json").read_text()) | {"quantization_config": online}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded = loading.load(tmp_path, cached=False)
    levels, scale = ops.unpack(loaded.weights.modules["model.layers.0.mlp.gate_up_proj"])
    expected = bitnet.quantize_bitnet_weight(masters, bitnet.get_bitnet_scale(masters)).numpy()
    assert (levels[192:] == expected).mean() > 0.999
    np.testing.assert_allclose(scale[192:], float(masters.abs().mean()), rtol=1e-6)
