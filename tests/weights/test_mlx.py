"""MLX's folders run as they are: the same codes, scales and biases, of 2 to 8 bits."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import torch
from checkpoint_factory.stored import Stored, small_llama, stored
from helpers import assert_same_bits, failure
from model_configs import MODELS
from safetensors.torch import load_file, save_file

from sterna import loading, ops
from sterna.engine import Engine
from sterna.errors import ModelFormatError, NonFiniteError, RequestError, UnsupportedModelError

TOKENS = [[(11 * i + 5) % 64 for i in range(48)]]
DOWN, TABLE = "model.layers.0.mlp.down_proj", "model.embed_tokens"


def words(codes: np.ndarray, bits: int) -> torch.Tensor:
    """Rows of codes as streams of bits in words of 32, the first lowest: by their definition."""
    places = codes[:, :, None] >> np.arange(bits) & 1
    raw = np.packbits(places.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(raw.view(np.uint32).copy())


def affine(
    bits: int, group: int, dtype: torch.dtype = torch.float16
) -> Callable[[torch.Tensor], Stored]:
    """From a group's least weight to its greatest, as MLX rounds."""

    def make(w: torch.Tensor) -> Stored:
        blocks = w.numpy().reshape(len(w), -1, group)
        low, high = blocks.min(2), blocks.max(2)
        kept = [torch.from_numpy(x).to(dtype) for x in ((high - low) / ((1 << bits) - 1), low)]
        scale, bias = (x.float().numpy()[:, :, None] for x in kept)
        codes = np.clip(np.rint((blocks - bias) / scale), 0, (1 << bits) - 1)
        values = (codes.astype(np.float32) * scale + bias).astype(np.float32)
        stored = words(codes.reshape(w.shape).astype(int), bits)
        tensors = {"weight": stored, "scales": kept[0], "biases": kept[1]}
        return tensors, torch.from_numpy(values.reshape(w.shape))

    return make


def ternary(w: torch.Tensor) -> Stored:
    """A scale for 128 (or 64) weights, and its negative as bias: codes 0, 1 and 2."""
    blocks = w.numpy().reshape(len(w), -1, 64)
    scale = np.abs(blocks).mean(2, keepdims=True).astype(np.float16).astype(np.float32)
    levels = np.clip(np.rint(blocks / scale), -1, 1)
    kept = torch.from_numpy(scale[:, :, 0]).bfloat16().float()
    stored = words((levels + 1).astype(int).reshape(w.shape), 2)
    values = torch.from_numpy(levels.astype(np.float32)) * kept[:, :, None]
    return {"weight": stored, "scales": kept.bfloat16(), "biases": -kept.bfloat16()}, (
        values.reshape(w.shape)
    )


#: The storage, and the format that it runs in.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def minifloats(bits: int, group: int, powers: bool = True) -> Callable[[torch.Tensor], Stored]:
    """Codes of E2M1 or E4M3, the nearest ones, with scales of E8M0 or E4M3."""

    def make(w: torch.Tensor) -> Stored:
        blocks = w.numpy().reshape(len(w), -1, group)
        most = np.abs(blocks).max(2)
        levels = np.concatenate([E2M1, -E2M1]) if bits == 4 else np.nan_to_num(E4M3, nan=1e9)
        if powers:
            stored = (np.floor(np.log2(most)) - (2 if bits == 4 else 8) + 127).astype(np.uint8)
            scale = np.ldexp(np.float32(1), stored.astype(int) - 127)
        else:
            f8 = torch.from_numpy(most / 6).to(torch.float8_e4m3fn)
            stored, scale = f8.view(torch.uint8).numpy(), f8.float().numpy()
        wanted = blocks / np.maximum(scale, 1e-30)[..., None]
        codes = np.abs(wanted[..., None] - levels).argmin(3)
        values = (levels[codes] * scale[..., None]).astype(np.float32).reshape(w.shape)
        tensors = {"weight": words(codes.reshape(w.shape), bits)}
        return tensors | {"scales": torch.from_numpy(stored)}, torch.from_numpy(values)

    return make


CASES: dict[str, tuple[Callable[[torch.Tensor], Stored], str]] = {
    "ternary": (ternary, "i2:g64"), "2": (affine(2, 64), "q2_0"),
    "2 of 32": (affine(2, 32), "q4_1"),
    "3": (affine(3, 64), "q4_1"), "4": (affine(4, 64, torch.bfloat16), "q4_1"),
    "5": (affine(5, 32), "q5_1"), "6": (affine(6, 64), "f32"), "8": (affine(8, 64), "f32"),
    "scales of float32": (affine(4, 64, torch.float32), "f32"),
    "mxfp4": (minifloats(4, 32), "mxfp4"), "mxfp8": (minifloats(8, 32), "fp8"),
    "nvfp4": (minifloats(4, 16, powers=False), "nvfp4"),
}  # fmt: skip
SETTINGS = {"group_size": 64, "bits": 4}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


def quantised(source: Path, to: Path, name: str) -> tuple[Path, Path]:
    """(the folder of a case, a folder of the floats that it stands for), tables included."""
    make = CASES[name][0]
    mode = {"mode": name} if name in ("mxfp4", "mxfp8", "nvfp4") else {}
    packed, plain = stored(source, to, make, SETTINGS | mode)
    for module in (TABLE, "lm_head"):
        tensors, real = (
            load_file(packed / "model.safetensors"),
            load_file(plain / "model.safetensors"),
        )
        parts, values = make(tensors.pop(f"{module}.weight"))
        tensors |= {f"{module}.{part}": t.contiguous() for part, t in parts.items()}
        real[f"{module}.weight"] = values.contiguous()
        save_file(tensors, packed / "model.safetensors", {"format": "pt"})
        save_file(real, plain / "model.safetensors", {"format": "pt"})
    return packed, plain


def logits(folder: Path, **options: Any) -> np.ndarray:
    model = loading.load(folder, cached=False, **options)
    return Engine(model, threads=1, kv_dtype="f32").logits(TOKENS)[0]


@pytest.mark.parametrize("name", CASES)
def test_folders_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """The same weights to the bit, of layers and tables; in floats the same model."""
    packed, plain = quantised(floats, tmp_path, name)
    loaded = loading.load(packed, cached=False)
    assert loaded.format == CASES[name][1]
    floating = loaded.format in ("f32", "fp8")
    assert loaded.head == ("exact" if floating else loaded.format)
    weights = load_file(plain / "model.safetensors")
    for module in (DOWN, TABLE, "lm_head"):
        got = ops.dequantize(loaded.weights.modules[module])
        assert_same_bits(got + 0.0, weights[f"{module}.weight"].numpy() + 0.0)
    expected = logits(plain, format="f32", head="f32")
    assert_same_bits(logits(packed, format="f32", head="f32"), expected)


def test_refusals(floats: Path, tmp_path: Path) -> None:
    """Modes that are not read, an exact head of integers, and tensors that do not fit."""
    packed, _ = quantised(floats, tmp_path, "4")
    failure(lambda: loading.load(packed, head="exact", cached=False), RequestError, "exact")
    config = json.loads((packed / "config.json").read_text())
    other = config | {"quantization_config": SETTINGS | {"mode": "nf4"}}
    (packed / "config.json").write_text(json.dumps(other))
    failure(lambda: loading.load(packed, cached=False), UnsupportedModelError, "nf4", "affine")
    (packed / "config.json").write_text(json.dumps(config))
    whole = load_file(packed / "model.safetensors")
    for suffix, change, kind in (
        ("weight", lambda t: t[:, :-1], ModelFormatError),
        ("biases", lambda t: t[:, :-1], ModelFormatError),
        ("scales", lambda t: t / 0, NonFiniteError),
    ):
        name = f"{DOWN}.{suffix}"
        tensors = {**whole, name: change(whole[name]).contiguous()}
        save_file(tensors, packed / "model.safetensors", {"format": "pt"})
        failure(lambda: loading.load(packed, cached=False), kind, name)


def test_damaged_scales_of_bytes(floats: Path, tmp_path: Path) -> None:
    """Another number of them, and NaN."""
    packed, _ = quantised(floats, tmp_path, "mxfp4")
    whole, name = load_file(packed / "model.safetensors"), f"{DOWN}.scales"
    for change, kind in (
        (lambda t: t[:, :-1], ModelFormatError), (lambda t: t * 0 + 255, NonFiniteError),
    ):  # fmt: skip
        tensors = {**whole, name: change(whole[name]).contiguous()}
        save_file(tensors, packed / "model.safetensors", {"format": "pt"})
        failure(lambda: loading.load(packed, cached=False), kind, name)


def stacks(folder: Path, to: Path, make: Callable[[torch.Tensor], Stored]) -> tuple[Path, Path]:
    """(a folder whose experts MLX has stacked, one of the floats that they stand for)."""
    packed: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    experts: dict[str, list[dict[str, torch.Tensor]]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        found = EXPERT.fullmatch(name)
        if found is None:
            packed[name] = plain[name] = tensor
            continue
        parts, values = make(tensor)
        plain[name] = values.contiguous()
        module, number, part = found.groups()
        each = experts.setdefault(f"{module}.switch_mlp.{MLX_NAMES.get(part, part)}", [])
        assert len(each) == int(number), name  # names are sorted
        each.append(parts)
    for name, each in experts.items():
        packed |= {f"{name}.{part}": torch.stack([e[part] for e in each]) for part in each[0]}
    for path, tensors in ((to / "packed", packed), (to / "plain", plain)):
        shutil.copytree(folder, path)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((to / "packed/config.json").read_text())
    config["quantization_config"] = {"group_size": 32, "bits": 4}
    (to / "packed/config.json").write_text(json.dumps(config))
    return to / "packed", to / "plain"


#: Names of Mixtral's parts.
MLX_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.([a-z0-9_]+)\.weight")
EXPERTS: dict[str, tuple[Callable[[torch.Tensor], Stored], str]] = {
    "4": (affine(4, 32), "q4_1"), "8": (affine(8, 32), "f32"),
    "mxfp4": (minifloats(4, 32), "mxfp4"),
    "floats": (lambda w: ({"weight": w}, w), "f32"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("row", ["qwen3-moe", "mixtral"])
def test_stacked_experts(row: str, name: str, tmp_path: Path) -> None:
    """Each expert's weights are those of a folder that has it by itself, to the bit."""
    saved_models.write(tmp_path / "m", MODELS[row])
    packed, plain = stacks(tmp_path / "m", tmp_path, EXPERTS[name][0])
    model = loading.load(packed, cached=False)
    modules = {key for key in model.weights.modules if ".experts." in key}
    assert {model.weights.modules[key].format.name for key in modules} == {EXPERTS[name][1]}
    assert len(modules) == 10
    expected = logits(plain, format="f32", head="f32")
    assert_same_bits(logits(packed, format="f32", head="f32"), expected)


@pytest.mark.parametrize("suffix", ["weight", "scales"])
def test_a_stack_that_does_not_fit(suffix: str, tmp_path: Path) -> None:
    """Another number of experts, or of groups."""
    saved_models.write(tmp_path / "m", MODELS["qwen3-moe"])
    packed, _ = stacks(tmp_path / "m", tmp_path, affine(4, 32))
    name = f"model.layers.0.mlp.switch_mlp.up_proj.{suffix}"
    tensors = load_file(packed / "model.safetensors")
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(packed, cached=False), ModelFormatError, name)
