"""bitsandbytes: int8 with a scale for each row, and four bits of a table (NF4, FP4) in blocks.

    weight         int8 [M, K]          LLM.int8()
    SCB            float32 [M]          127 times the scale
    weight_format  uint8                "row", the only layout that is saved

    weight                    uint8 [M K / 2, 1]   two codes in a byte, the first in the high half
    weight.quant_map          float32 [16]         the value of each code
    weight.absmax             float32 [blocks], or uint8, codes of another table:
    weight.nested_quant_map   float32 [256]
    weight.nested_absmax      float32, a scale for each nested_blocksize of these
    weight.quant_state.bitsandbytes__nf4 (or fp4)   uint8: JSON with the sizes of blocks

Blocks are of neighbours of k, and of the next row where they are longer than a row's rest. No
format holds such tables, so the weights become float32, as the library computes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.files.jsonfile import parse_json
from sterna.weights.storages.base import F32, Floats, Layer, Levels
from sterna.weights.storages.integers import integers

__all__ = ["SUFFIXES"]

SCALE, ABSMAX, TABLE = "SCB", "weight.absmax", "weight.quant_map"
NESTED, NESTED_TABLE = "weight.nested_absmax", "weight.nested_quant_map"
STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
SUFFIXES = (SCALE, "weight_format", ABSMAX, TABLE, NESTED, NESTED_TABLE, *STATES)
MAX_STATE = 4096  # bytes of JSON


def recognises(layer: Layer) -> bool:
    """Whether there are scales of these names."""
    return layer.has(SCALE) or layer.has(ABSMAX)


def read(layer: Layer) -> Levels | Floats:
    """Read the levels, or the values of the codes, and check them."""
    if layer.has(SCALE):
        return _rows(layer)
    M, K = layer.shape
    state = _state(layer)
    block = _size(layer, state, "blocksize")
    if state.get("shape") != [M, K] or M * K % 2:
        layer.fail("weight", f"shape {[M, K]} in its quant_state", state.get("shape"))
    stored = layer.checkpoint.require(f"{layer.part.name}.weight", (M * K // 2, 1), "U8")
    pairs = np.asarray(layer.checkpoint.read(stored.name)).reshape(-1)
    values = layer.floats(TABLE, (16,))[np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(-1)]
    scale = _absmax(layer, state, -(-M * K // block))
    weights = values * np.repeat(scale, block)[: M * K]
    return Floats("f32", np.ascontiguousarray(weights, np.float32).reshape(M, K))


def _rows(layer: Layer) -> Levels | Floats:
    info = layer.checkpoint.require(f"{layer.part.name}.weight", layer.shape, "I8")
    if layer.has("weight_format"):
        kind = layer.checkpoint.require(f"{layer.part.name}.weight_format", None, "U8")
        if kind.shape != () or int(np.asarray(layer.checkpoint.read(kind.name))) != 0:
            layer.fail("weight_format", "0, the layout of rows", "another")
    scale = layer.floats(SCALE, (layer.part.M,)) / np.float32(127)
    levels = np.asarray(layer.checkpoint.read(info.name))
    return integers(range(-128, 128), levels, np.asarray(scale, np.float32).reshape(-1, 1))


def _state(layer: Layer) -> dict[str, Any]:
    """Read the JSON of a layer's blocks."""
    suffix = next((s for s in STATES if layer.has(s)), STATES[0])
    info = layer.info(suffix)
    if info.dtype != "U8" or len(info.shape) != 1 or info.shape[0] > MAX_STATE:
        layer.fail(suffix, "bytes of JSON", f"{info.dtype} {list(info.shape)}")
    state = parse_json(np.asarray(layer.checkpoint.read(info.name)).tobytes(), info.file)
    if not isinstance(state, dict):
        layer.fail(suffix, "a JSON object", "another value")
    return state


def _size(layer: Layer, state: dict[str, Any], name: str) -> int:
    size = state.get(name)
    if type(size) is not int or not 0 < size <= 1 << 20:
        layer.fail("weight", f"a {name} in 1..{1 << 20} in its quant_state", size)
    assert isinstance(size, int)
    return size


def _absmax(layer: Layer, state: dict[str, Any], blocks: int) -> F32:
    """Read the scales of blocks, which may be codes with scales of their own."""
    if not layer.has(NESTED):
        return layer.floats(ABSMAX, (blocks,))
    info = layer.checkpoint.require(f"{layer.part.name}.{ABSMAX}", (blocks,), "U8")
    size, offset = _size(layer, state, "nested_blocksize"), state.get("nested_offset")
    if not isinstance(offset, int | float) or isinstance(offset, bool):
        layer.fail("weight", "a nested_offset in its quant_state", offset)
    codes = np.asarray(layer.checkpoint.read(info.name))
    scale = np.repeat(layer.floats(NESTED, (-(-blocks // size),)), size)[:blocks]
    return np.asarray(
        layer.floats(NESTED_TABLE, (256,))[codes] * scale + np.float32(offset), np.float32
    )
