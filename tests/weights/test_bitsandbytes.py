"""bitsandbytes' files run as they are: int8 rows, and four bits of a table in blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from checkpoint_factory.stored import Stored, small_llama, stored
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from sterna import loading, ops
from sterna.engine import Engine
from sterna.errors import ModelFormatError, NonFiniteError, SternaError
from sterna.formats import fp4, level_tables, nf4

UP = "model.layers.1.mlp.up_proj"
DOWN = "model.layers.0.mlp.down_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"


def rows(w: torch.Tensor) -> Stored:
    most = w.abs().amax(1)
    levels = (w * (127 / most)[:, None]).round().to(torch.int8)
    scale = most / 127
    tensors = {"weight": levels, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, levels.float() * scale[:, None]


#: The published tables (QLoRA, appendix E; bitsandbytes' FP4 by its bits: a sign, and 0, 1 / 192 or
#: 2^-e (1 + m / 2) / 1.5 for the others).
TABLES = {
    "nf4": [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
            -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
            0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
            0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    "fp4": [s * m for s in (1, -1) for m in (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)],
}  # fmt: skip


def table(block: int, nested: int = 0, kind: str = "") -> Callable[[torch.Tensor], Stored]:
    """Codes of a published table or a random one, the largest value of each block its scale;
    nested: these are codes of another table, with scales for so many."""

    def make(w: torch.Tensor) -> Stored:
        rng = np.random.default_rng(w.numel())
        values = np.array(TABLES.get(kind) or np.sort(random_table()), np.float32)
        flat = w.numpy().reshape(-1)
        blocks = -(-flat.size // block)
        whole = np.pad(flat, (0, blocks * block - flat.size)).reshape(blocks, block)
        most = np.abs(whole).max(1)
        state: dict[str, Any] = {
            "quant_type": kind or "nf4",
            "blocksize": block,
            "dtype": "float32",
        }
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
            STATE.replace("nf4", kind or "nf4"): torch.from_numpy(
                np.frombuffer(text, np.uint8).copy()
            ),
        }
        return tensors, torch.from_numpy(kept.reshape(w.shape))

    return make


def random_table() -> npt.NDArray[np.float64]:
    return np.random.default_rng(3).uniform(-1, 1, 16)


RANDOM = level_tables.name_of(level_tables.nearest_levels(np.sort(random_table()))[0])
CASES: dict[str, tuple[Callable[[torch.Tensor], Stored], str]] = {
    "int8": (rows, "i8"), "nf4": (table(64, kind="nf4"), "nf4"),
    "fp4": (table(64, kind="fp4"), "fp4"), "any table": (table(64), f"{RANDOM}:g64"),
    "nested": (table(64, 256, "nf4"), "nf4"), "blocks of 32": (table(32, kind="nf4"), "nf4:g32"),
    "blocks across rows": (table(4096, 3), "f32"), "blocks of 48": (table(48), "f32"),
}  # fmt: skip
SETTINGS = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "llm_int8_threshold": 6.0}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_llama(tmp_path_factory.mktemp("floats"))


@pytest.mark.parametrize("name", CASES)
def test_files_run_as_they_are(name: str, floats: Path, tmp_path: Path) -> None:
    """In floats the same weights to the bit. Codes stay codes: a level is half a unit from the
    table's at most, of which the largest has 64 or more, and a scale is an f16."""
    make, format = CASES[name]
    packed, plain = stored(floats, tmp_path, make, SETTINGS)
    expected = load_file(plain / "model.safetensors")[f"{DOWN}.weight"].numpy()
    exact = loading.load(packed, format="f32", cached=False).weights.modules[DOWN]
    assert_same_bits(ops.dequantize(exact) + 0.0, expected + 0.0)
    loaded = loading.load(packed, cached=False)
    assert loaded.format == format
    weight = loaded.weights.modules[DOWN]
    assert weight.format == format
    got = ops.dequantize(weight)
    if format in ("i8", "f32"):
        assert_same_bits(got + 0.0, expected + 0.0)
        return
    group = weight.format.scales.group
    blocks = [w.reshape(-1, group) for w in (expected, got)]
    largest = np.abs(blocks[0]).max(axis=1, keepdims=True)
    wide = TABLES.get(format.partition(":")[0]) or random_table()
    largest = largest / np.abs(wide).max()  # a block's largest is not the table's
    assert (np.abs(blocks[1] - blocks[0]) <= largest * (0.5 / 64 + 2.0**-11)).all()
    levels, _ = ops.unpack(weight)
    assert len(np.unique(levels)) <= 16
    assert weight.nbytes <= 0.6 * expected.size


@pytest.mark.parametrize("kind", TABLES)
def test_tables(kind: str) -> None:
    """The formats' values are the published ones, and levels the nearest to them."""
    format = {"nf4": nf4, "fp4": fp4}[kind]
    np.testing.assert_array_equal(np.array(format.VALUES), TABLES[kind])
    levels, unit = level_tables.nearest_levels(TABLES[kind])
    assert format.FORMAT.table == levels
    apart = np.array(levels) * unit - TABLES[kind]
    assert np.sqrt(np.mean(np.square(apart))) < 0.0018


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
    ("nf4", "weight", lambda t: t[:-1], ModelFormatError),
    ("nf4", "weight.quant_map", lambda t: t[:-1], ModelFormatError),
    ("nf4", "weight.absmax", lambda t: t[:-1], ModelFormatError),
    ("nf4", STATE, text(shape=[3, 5]), ModelFormatError),
    ("nf4", STATE, text(blocksize=0), ModelFormatError),
    ("nf4", STATE, lambda t: t[:-1], ModelFormatError),
    ("nf4", STATE, lambda t: t.float(), ModelFormatError),
    ("nf4", "weight.quant_map", lambda t: t * 0, ModelFormatError),
    ("nf4", "weight.quant_map", lambda t: t / 0, NonFiniteError),
    ("nf4", "weight.absmax", lambda t: t / 0, NonFiniteError),
    ("huge", "weight.absmax", lambda t: t * 0 + 3e38, NonFiniteError),
    ("nf4", STATE, text(blocksize=True), ModelFormatError),
    ("nf4", STATE, text(blocksize=128), ModelFormatError),
    ("nested", STATE, text(nested_offset=1e39), NonFiniteError),
    ("nested", STATE, text(nested_blocksize="x"), ModelFormatError),
    ("nested", STATE, text(nested_offset=None), ModelFormatError),
    ("nested", "weight.nested_absmax", lambda t: t[:-1], ModelFormatError),
    ("nested", "weight.nested_quant_map", lambda t: t[:-1], ModelFormatError),
]


@pytest.mark.parametrize(("case", "suffix", "change", "kind"), BAD)
def test_damaged(
    case: str, suffix: str, change: Any, kind: type[SternaError], floats: Path, tmp_path: Path
) -> None:
    packed, _ = stored(floats, tmp_path, CASES["nf4" if case == "huge" else case][0], SETTINGS)
    tensors = load_file(packed / "model.safetensors")
    name = f"{UP}.{suffix}"
    tensors[name] = change(tensors[name]).contiguous()
    if case == "huge":
        tensors[f"{UP}.weight.quant_map"] *= 2
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
    assert loading.load(packed, cached=False).format == kind
    loaded = loading.load(packed, format="f32", cached=False)
    expected = load_file(plain / "model.safetensors")[f"{DOWN}.weight"].numpy()
    assert_same_bits(ops.dequantize(loaded.weights.modules[DOWN]) + 0.0, expected + 0.0)


@pytest.mark.parametrize(
    ("settings", "format"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        (
            {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            "nf4",
        ),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "fp4"),
        ({"load_in_8bit": True}, "i8"),
    ],
    ids=["nf4", "nested", "fp4", "int8"],
)
def test_what_transformers_saves(
    settings: dict[str, Any], format: str, floats: Path, tmp_path: Path
) -> None:
    """A saved model answers as transformers' own in float32, for its kernels may round inputs."""
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    config = BitsAndBytesConfig(**settings)
    theirs = AutoModelForCausalLM.from_pretrained(
        floats, quantization_config=config, dtype=torch.float32, device_map="cpu"
    )
    theirs.save_pretrained(tmp_path / "saved")
    theirs = theirs.dequantize(dtype=torch.float32)
    tokens = np.arange(24)[None] * 7 % theirs.config.vocab_size
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits[0].numpy()
    spread = float(expected.std())
    for own, most in ((None, 0.05), ("f32", 1e-5)):
        model = loading.load(tmp_path / "saved", format=own, cached=False)
        assert model.format == (own or format)
        got = Engine(model, threads=1, kv_dtype="f32").logits(tokens)[0]
        assert float(np.sqrt(np.mean(np.square(got - expected)))) <= most * spread
