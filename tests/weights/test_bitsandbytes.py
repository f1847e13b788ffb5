"""bitsandbytes' files run as they are: int8 rows, and four bits of a table in blocks."""

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

from sterna import loading, ops
from sterna.errors import ModelFormatError, NonFiniteError, SternaError

UP = "model.layers.1.mlp.up_proj"
DOWN = "model.layers.0.mlp.down_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"


def rows(w: torch.Tensor) -> Stored:
    most = w.abs().amax(1)
    levels = (w * (127 / most)[:, None]).round().to(torch.int8)
    scale = most / 127
    tensors = {"weight": levels, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, levels.float() * scale[:, None]


def table(block: int, nested: int = 0) -> Callable[[torch.Tensor], Stored]:
    """Codes of a random table, the largest value of each block its scale; nested: these are codes
    of another table, with scales for so many."""

    def make(w: torch.Tensor) -> Stored:
        rng = np.random.default_rng(w.numel())
        values = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
        flat = w.numpy().reshape(-1)
        blocks = -(-flat.size // block)
        whole = np.pad(flat, (0, blocks * block - flat.size)).reshape(blocks, block)
        most = np.abs(whole).max(1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": "float32"}
        tensors = {"weight.absmax": torch.from_numpy(most)}
        if nested:
            others = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            offset, groups = float(np.float32(most.mean())), -(-blocks // nested)
            scales = rng.uniform(0.5, 1, groups).astype(np.float32)
            of_block = np.repeat(scales, nested)[:blocks]
            codes = np.abs((most - offset) / of_block - others[:, None]).argmin(0).astype(np.uint8)
            most = (others[codes] * of_block + np.float32(offset)).astype(np.float32)
            state |= {"nested_blocksize": nested, "nested_offset": offset}
            tensors = {
                "weight.absmax": torch.from_numpy(codes),
                "weight.nested_absmax": torch.from_numpy(scales),
                "weight.nested_quant_map": torch.from_numpy(others),
            }
        codes = np.abs(whole[:, :, None] - values * most[:, None, None]).argmin(2)
        kept = (values[codes] * most[:, None]).astype(np.float32).reshape(-1)[: flat.size]
        pairs = codes.reshape(-1)[: flat.size].reshape(-1, 2)
        text = json.dumps(state | {"shape": list(w.shape)}).encode()
        tensors |= {
            "weight": torch.from_numpy((pairs[:, :1] << 4 | pairs[:, 1:]).astype(np.uint8)),
            "weight.quant_map": torch.from_numpy(values),
            STATE: torch.from_numpy(np.frombuffer(text, np.uint8).copy()),
        }
        return tensors, torch.from_numpy(kept.reshape(w.shape))

    return make


CASES: dict[str, tuple[Callable[[torch.Tensor], Stored], str]] = {
    "int8": (rows, "i8"), "4 bits": (table(64), "f32"), "nested": (table(64, 256), "f32"),
    "blocks across rows": (table(4096, 3), "f32"),
}  # fmt: skip
SETTINGS = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "llm_int8_threshold": 6.0}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


@pytest.mark.parametrize("name", CASES)
def test_files_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """The same weights to the bit."""
    make, format = CASES[name]
    packed, plain = stored(floats, tmp_path, make, SETTINGS)
    loaded = loading.load(packed, cached=False)
    assert loaded.format == format
    weights = load_file(plain / "model.safetensors")
    got = ops.dequantize(loaded.weights.modules[DOWN])
    assert_same_bits(got + 0.0, weights[f"{DOWN}.weight"].numpy() + 0.0)


def text(**changes: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Another quant_state."""

    def change(t: torch.Tensor) -> torch.Tensor:
        state = json.loads(t.numpy().tobytes()) | changes
        return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)

    return change


BAD: list[tuple[str, str, Any, type[SternaError]]] = [
    ("int8", "SCB", lambda t: t[:-1], ModelFormatError),
    ("int8", "SCB", lambda t: t / 0, NonFiniteError),
    ("int8", "weight", lambda t: t[:, :-1], ModelFormatError),
    ("int8", "weight_format", lambda t: t + 2, ModelFormatError),
    ("4 bits", "weight", lambda t: t[:-1], ModelFormatError),
    ("4 bits", "weight.quant_map", lambda t: t[:-1], ModelFormatError),
    ("4 bits", "weight.absmax", lambda t: t[:-1], ModelFormatError),
    ("4 bits", STATE, text(shape=[3, 5]), ModelFormatError),
    ("4 bits", STATE, text(blocksize=0), ModelFormatError),
    ("4 bits", STATE, lambda t: t[:-1], ModelFormatError),
    ("4 bits", STATE, lambda t: t.float(), ModelFormatError),
    ("nested", STATE, text(nested_blocksize="x"), ModelFormatError),
    ("nested", STATE, text(nested_offset=None), ModelFormatError),
    ("nested", "weight.nested_absmax", lambda t: t[:-1], ModelFormatError),
    ("nested", "weight.nested_quant_map", lambda t: t[:-1], ModelFormatError),
]


@pytest.mark.parametrize(("case", "suffix", "change", "kind"), BAD)
def test_damaged(
    case: str, suffix: str, change: Any, kind: type[SternaError], floats: Path, tmp_path: Path
) -> None:
    packed, _ = stored(floats, tmp_path, CASES[case][0], SETTINGS)
    tensors = load_file(packed / "model.safetensors")
    name = f"{UP}.{suffix}"
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    failure(lambda: loading.load(packed, cached=False), kind, "model.safetensors")


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_what_the_library_writes(kind: str, nested: bool, floats: Path, tmp_path: Path) -> None:
    """Its own codes and tables, and its own values of them."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="needs bitsandbytes")

    def make(w: torch.Tensor) -> Stored:
        codes, state = functional.quantize_4bit(
            w, blocksize=64, quant_type=kind, compress_statistics=nested
        )
        packed = state.as_dict(packed=True)
        values = functional.dequantize_4bit(codes, state)
        return {"weight": codes} | {f"weight.{k}": v for k, v in packed.items()}, values

    packed, plain = stored(floats, tmp_path, make, SETTINGS)
    loaded = loading.load(packed, cached=False)
    expected = load_file(plain / "model.safetensors")[f"{DOWN}.weight"].numpy()
    got = ops.dequantize(loaded.weights.modules[DOWN])
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()
