"""FP8, NVFP4, MXFP4 and AWQ as others write them: the same weights to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory.stored import Stored, small_llama, stored
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from test_integer_storages import COMPRESSED, damage, perplexity, rounded, words
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from sterna import loading, ops
from sterna.errors import ModelFormatError, NonFiniteError, UnsupportedModelError

UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.0.mlp.down_proj"
E4M3, LARGEST = torch.float8_e4m3fn, 448.0


def transformers_fp8(block: list[int] | None, scale_fmt: str = "float") -> Any:
    """transformers' own writer, and its reader as the reference."""
    config = SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt)

    def make(w: torch.Tensor) -> Stored:
        own = SimpleNamespace(quantization_config=config)
        made = Fp8Quantize(own).convert({"weight": w})
        values = Fp8Dequantize(own)._dequantize_one(
            made["weight"], made["weight_scale_inv"], torch.float32
        )
        return made, values

    return make


def by_blocks(rows: int, k: int) -> Any:
    """DeepSeek's blocks, of which the last may be cut."""

    def make(w: torch.Tensor) -> Stored:
        M, K = w.shape
        padded = torch.nn.functional.pad(w, (0, -K % k, 0, -M % rows))
        blocks = padded.reshape(-(-M // rows), rows, -(-K // k), k)
        scale = blocks.abs().amax((1, 3)) / LARGEST
        of_weights = scale.repeat_interleave(rows, 0)[:M].repeat_interleave(k, 1)[:, :K]
        codes = (w / of_weights).to(E4M3)
        made = {"weight": codes, "weight_scale_inv": scale, "input_scale": torch.ones(1)}
        return made, codes.float() * of_weights

    return make


def by_rows(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    """compressed-tensors' channels, fbgemm's, and one scale for all."""

    def make(w: torch.Tensor) -> Stored:
        most = w.abs().amax(1, keepdim=True) if shape[:1] == (-1,) else w.abs().amax()
        scale = (most / LARGEST).to(dtype)
        codes = (w / scale.float()).clamp(-LARGEST, LARGEST).to(E4M3)
        made = {"weight": codes, "weight_scale": scale.reshape(shape)}
        return made, codes.float() * scale.float()

    return make


def mxfp8(w: torch.Tensor) -> Stored:
    """OCP's MXFP8: a power of two for 32, as a byte."""
    groups = w.reshape(len(w), -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(2))) - 8
    scale = torch.exp2(exponents)[:, :, None]
    codes = (groups / scale).clamp(-LARGEST, LARGEST).to(E4M3)
    made = {"weight": codes.reshape(w.shape), "weight_scale": (exponents + 127).to(torch.uint8)}
    return made, (codes.float() * scale).reshape(w.shape)


def compressor(name: str, group: int) -> Any:
    """compressed-tensors' own writer and reader."""
    pytest.importorskip("compressed_tensors", reason="needs compressed-tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    args: dict[str, Any] = {"num_bits": 4, "type": "float", "group_size": group}
    args["strategy"] = "tensor_group" if group == 16 else "group"
    args["scale_dtype"] = torch.uint8 if group == 32 else E4M3
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    writer = BaseCompressor.get_value_from_registry(name)

    def make(w: torch.Tensor) -> Stored:
        state = {"weight": w}
        most = w.abs().reshape(len(w), -1, group).amax(2)
        if group == 16:
            state["weight_global_scale"] = (LARGEST * 6 / w.abs().max()).reshape(1)
            local = (most / 6 * state["weight_global_scale"]).clamp(max=LARGEST).to(E4M3).float()
        else:
            local = torch.exp2(torch.floor(torch.log2(most)) - 2)
        made = writer.compress(state | {"weight_scale": local}, scheme)
        # decompress() does this in bfloat16
        codes = unpack_fp4_from_uint8(made["weight_packed"], *w.shape, dtype=torch.float32)
        scale = writer._decompress_scale(made["weight_scale"], torch.float32)
        of_tensor = made.get("weight_global_scale")
        return made, dequantize(codes, scale, args=scheme.weights, global_scale=of_tensor)

    return make


def modelopt_nvfp4(w: torch.Tensor) -> Stored:
    """modelopt's names: the scale of the tensor multiplies."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    groups = w.reshape(len(w), -1, 16)
    of_tensor = w.abs().max() / (6 * LARGEST)
    scale = (groups.abs().amax(2) / 6 / of_tensor).to(E4M3)
    of_groups = (scale.float() * of_tensor)[:, :, None]
    codes = (groups.abs() / of_groups).unsqueeze(-1).sub(values).abs().argmin(-1)
    codes = (codes | (groups < 0) * 8).reshape(w.shape).to(torch.uint8)
    real = torch.cat([values, -values])[codes.long()].reshape(groups.shape) * of_groups
    made = {
        "weight": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scale,
        "weight_scale_2": of_tensor, "input_scale": torch.tensor(0.5),
    }  # fmt: skip
    return made, real.reshape(w.shape)


def awq(group: int) -> Any:
    """AutoAWQ's packing "gemm": columns 0, 2, 4, 6, 1, 3, 5, 7 of eight in a word, lowest first."""

    def make(w: torch.Tensor) -> Stored:
        codes, zeros, scale, values = rounded(w, 4, group, False)

        def packed(rows: np.ndarray) -> torch.Tensor:
            order = rows.reshape(len(rows), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
            return words(order.reshape(rows.shape), 4, 1)

        made = {"qweight": packed(codes.T), "qzeros": packed(zeros.T)}
        made["scales"] = torch.from_numpy(np.ascontiguousarray(scale.T)).half()
        return made, torch.from_numpy(values)

    return make


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
FLOATS = {"weights": {"type": "float"}, "input_activations": {"type": "float", "dynamic": True}}
FLOAT = COMPRESSED | {"format": "float-quantized", "config_groups": {"group_0": FLOATS}}
#: Name -> (writer or what makes one, quantization_config, the format that runs).
CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "fp8-blocks": (
        lambda: transformers_fp8([64, 64]), FP8 | {"weight_block_size": [64, 64]}, "fp8"
    ),
    "fp8-powers": (
        lambda: transformers_fp8([64, 64], "ue8m0"), FP8 | {"weight_block_size": [64, 64]}, "fp8"
    ),
    "fp8-tensor": (lambda: transformers_fp8(None), FP8, "fp8"),
    "fp8-cut": (lambda: by_blocks(128, 128), FP8 | {"weight_block_size": [128, 128]}, "fp8"),
    "fp8-odd": (lambda: by_blocks(128, 48), FP8 | {"weight_block_size": [128, 48]}, "f32"),
    "fp8-channels": (lambda: by_rows((-1, 1), torch.bfloat16), FLOAT, "fp8"),
    "fbgemm": (lambda: by_rows((-1, 1)), {"quant_method": "fbgemm_fp8"}, "fp8"),
    "modelopt-fp8": (lambda: by_rows(()), {"quant_method": "modelopt"}, "fp8"),
    "nvfp4": (
        lambda: compressor("nvfp4-pack-quantized", 16),
        COMPRESSED | {"format": "nvfp4-pack-quantized"}, "nvfp4",
    ),
    "mxfp8": (lambda: mxfp8, COMPRESSED | {"format": "mxfp8-quantized"}, "fp8"),
    "mxfp4": (
        lambda: compressor("mxfp4-pack-quantized", 32),
        COMPRESSED | {"format": "mxfp4-pack-quantized"}, "mxfp4",
    ),
    "modelopt-nvfp4": (lambda: modelopt_nvfp4, {"quant_method": "modelopt"}, "nvfp4"),
    "awq": (lambda: awq(64), AWQ, "q5_0"),
    "awq-autoround": (
        lambda: awq(32), {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"},
        "q5_0",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


def quantised(source: Path, to: Path, name: str) -> tuple[Path, Path]:
    """(the folder of a case, a folder of the floats that it stands for)."""
    make, settings, _ = CASES[name]
    return stored(source, to, make(), settings)


@pytest.mark.parametrize("name", CASES)
def test_files_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """The same weights to the bit, and in floats the same perplexity."""
    packed, plain = quantised(floats, tmp_path, name)
    loaded = loading.load(packed, cached=False)
    assert loaded.format == CASES[name][2]
    weights = load_file(plain / "model.safetensors")
    for layer in (UP, DOWN):
        # up_proj lies behind gate_proj
        weight = loaded.weights.modules[layer.replace("up_proj", "gate_up_proj")]
        got = ops.dequantize(weight)[-weights[f"{layer}.weight"].shape[0] :]
        expected = weights[f"{layer}.weight"].numpy()
        if name == "nvfp4":  # whose file divides by a float32, where a layer multiplies
            np.testing.assert_allclose(got, expected, rtol=2.0**-22)
        else:
            assert_same_bits(got + 0.0, expected + 0.0)
    expected = perplexity(plain, "f32")
    assert perplexity(packed, "f32") == expected
    if loaded.format == "fp8":
        assert perplexity(packed) == expected
    else:
        assert abs(np.log(perplexity(packed) / expected)) < 1e-2  # of activations in int8


def test_five_bits_have_the_bits_of_eight(floats: Path, tmp_path: Path) -> None:
    packed, _ = quantised(floats, tmp_path, "awq")
    assert perplexity(packed) == perplexity(packed, "i8:g64")


@pytest.mark.parametrize("name", ["fp8-cut", "modelopt-nvfp4"])
def test_experts(name: str, tmp_path: Path) -> None:
    """A tensor of codes for each expert, next to a router of floats."""
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=128, intermediate_size=192, moe_intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=64,
        num_experts=4, num_experts_per_tok=2, max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "floats")
    packed, plain = quantised(tmp_path / "floats", tmp_path, name)
    assert loading.load(packed, cached=False).format == CASES[name][2]
    expected = perplexity(plain, "f32")
    assert perplexity(packed, "f32") == expected
    if name == "fp8-cut":
        assert perplexity(packed) == expected
    else:
        assert abs(np.log(perplexity(packed) / expected)) < 1e-2


BAD: list[tuple[str, str, Any, type, str]] = [
    ("fp8-cut", "weight_scale_inv", lambda t: t[:-1], ModelFormatError, "[2, 1]"),
    ("fp8-cut", "weight_scale_inv", lambda t: t / 0, NonFiniteError, "weight_scale_inv"),
    ("fp8-cut", "weight_scale_inv", lambda t: t.long(), ModelFormatError, "I64"),
    ("fp8-cut", "weight_scale_inv", lambda _: None, ModelFormatError, "weight_scale"),
    ("fp8-cut", "weight", lambda t: t[:-1], ModelFormatError, "191, 128"),
    ("fp8-cut", "weight", lambda t: (t.view(torch.uint8) | 127).view(E4M3), NonFiniteError, "NaN"),
    ("modelopt-nvfp4", "weight_scale", lambda t: t[:, 1:], ModelFormatError, "[192, 8] (NVFP4)"),
    ("modelopt-nvfp4", "weight_scale", lambda t: (t.view(torch.uint8) | 127).view(E4M3),
     ModelFormatError, "finite"),
    ("modelopt-nvfp4", "weight_scale_2", lambda _: None, ModelFormatError, "weight_scale_2"),
    ("modelopt-nvfp4", "weight_scale_2", lambda t: t.repeat(2), ModelFormatError, "one float"),
    ("awq", "qzeros", lambda t: t[:, 1:], ModelFormatError, "qzeros"),
    ("awq", "scales", lambda t: t[1:], ModelFormatError, "qzeros"),
    ("awq", "qweight", lambda t: t.long(), ModelFormatError, "I64"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "suffix", "change", "kind", "word"), BAD)
def test_damaged(
    case: str, suffix: str, change: Any, kind: type, word: str, floats: Path, tmp_path: Path
) -> None:
    """Refused by name."""
    packed, _ = quantised(floats, tmp_path, case)
    damage(packed, suffix, change)
    failure(lambda: loading.load(packed, cached=False), kind, UP, word)


@pytest.mark.parametrize(
    ("settings", "word"), [({"version": "gemv"}, "gemm"), ({"bits": 8}, "must be 4")]
)
def test_other_packings_of_awq(
    settings: dict[str, Any], word: str, floats: Path, tmp_path: Path
) -> None:
    packed, _ = quantised(floats, tmp_path, "awq")
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(
        json.dumps(config | {"quantization_config": AWQ | settings})
    )
    failure(lambda: loading.load(packed, cached=False), UnsupportedModelError, word)


#: As compressed-tensors, modelopt, AutoFP8 and vLLM name the scales of an FP8 cache.
OF_CACHES = (
    "self_attn.k_scale", "self_attn.v_scale", "self_attn.q_scale", "self_attn.attn.k_scale",
    "self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", "self_attn.k_proj.output_scale",
    "self_attn.qkv_proj.k_scale", "self_attn.kv_scale", "self_attn.k_zero_point",
)  # fmt: skip


def test_scales_of_a_cache_change_nothing(floats: Path, tmp_path: Path) -> None:
    """They are left out with one warning; other unknown tensors next to them are refused."""
    packed, _ = quantised(floats, tmp_path, "fp8-cut")
    expected, file = perplexity(packed), packed / "model.safetensors"
    tensors = load_file(file) | {f"model.layers.0.{n}": torch.ones(1) for n in OF_CACHES}
    save_file(tensors, file, {"format": "pt"})
    with pytest.warns(RuntimeWarning, match=f"{len(OF_CACHES)} scales of a KV cache") as told:
        assert perplexity(packed) == expected
    assert len(told) == 1
    tensors["model.layers.0.self_attn.k_norm"] = torch.ones(1)
    save_file(tensors, file, {"format": "pt"})
    failure(lambda: loading.load(packed, cached=False), UnsupportedModelError, "k_norm")


def test_a_bias_of_zeros_changes_nothing(floats: Path, tmp_path: Path) -> None:
    """Some quantisers add one to every layer; another bias is refused."""
    packed, _ = quantised(floats, tmp_path, "awq")
    expected, file = perplexity(packed), packed / "model.safetensors"
    tensors = load_file(file)
    bias = {f"{UP}.bias": torch.zeros(192)}
    save_file(tensors | bias, file, {"format": "pt"})
    assert perplexity(packed) == expected
    bias[f"{UP}.bias"][7] = 1e-4
    save_file(tensors | bias, file, {"format": "pt"})
    failure(lambda: loading.load(packed, cached=False), UnsupportedModelError, f"{UP}.bias")


@pytest.mark.parametrize("name", ["fp8-cut", "modelopt-nvfp4"])
def test_packed_copies(name: str, floats: Path, tmp_path: Path) -> None:
    """A packed folder has the same logits; one with a code or a scale of NaN is refused."""
    from sterna.convert import convert

    packed, _ = quantised(floats, tmp_path, name)
    convert(packed, tmp_path / "copy")
    assert perplexity(tmp_path / "copy") == perplexity(packed)
    file = tmp_path / "copy" / "model.safetensors"
    tensors = load_file(file)
    for key, tensor in tensors.items():  # all codes of E2M1 are numbers, but not all scales
        if DOWN in key and tensor.dtype == torch.uint8:
            tensor.view(-1)[:64] = 255
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises((ModelFormatError, NonFiniteError)):
        loading.load(tmp_path / "copy", cached=False)
