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

Blocks are of neighbours of k, and of the next row where they are longer than a row's rest. Where
they divide rows, codes stay codes: the table in int8 and the scales in f16 are near the stored ones
(docs/reference/formats.md says how near). Elsewhere, and asked for in floats, weights are float32
as the library computes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.errors import NonFiniteError, RequestError
from sterna.files.jsonfile import parse_json
from sterna.formats import GROUP_K, fp4, level_tables, nf4
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
    table, absmax = layer.floats(TABLE, (16,)), _absmax(layer, state, -(-M * K // block))
    pairs = np.asarray(layer.checkpoint.read(stored.name)).reshape(-1)
    codes = np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(M, K)

    with np.errstate(over="ignore"):
        largest = absmax * np.abs(table).max()
    if not np.isfinite(largest).all():
        raise NonFiniteError(
            f"{stored.file}: {layer.part.name}.{ABSMAX}: levels times scales must be finite, but "
            f"block {int((~np.isfinite(largest)).argmax())} has {largest.max()}"
        )

    def floats() -> Floats:
        weights = table[codes].reshape(-1) * np.repeat(absmax, block)[: M * K]
        return Floats("f32", np.ascontiguousarray(weights, np.float32).reshape(M, K))

    levels, unit = _levels(layer, table)
    scale = absmax * np.float32(unit)
    if K % block or block % GROUP_K or not _fit(scale, absmax, max(levels)):
        return floats()
    own = np.array(levels, np.int8)[codes]
    kinds = tuple(sorted(set(levels)))
    return Levels(kinds, own, scale.reshape(M, K // block), floats, stored_format=_name(levels))


def _levels(layer: Layer, table: F32) -> tuple[tuple[int, ...], float]:
    """Return the table in whole numbers, and the value of 1."""
    try:
        return level_tables.nearest_levels(table)
    except RequestError:
        layer.fail(TABLE, "levels that are not all 0", "zeros")


def _name(levels: tuple[int, ...]) -> str:
    """Return the name of the format of these levels."""
    of_library = (f.FORMAT for f in (nf4, fp4))
    return next((f.name for f in of_library if f.table == levels), level_tables.name_of(levels))


def _fit(scale: F32, absmax: F32, most: int) -> bool:
    """Whether scales in f16 move no weight by more than 2^-11 of the largest."""
    with np.errstate(over="ignore"):
        apart = np.abs(scale.astype(np.float16).astype(np.float32) - scale).max(initial=0.0)
    return bool(apart * most <= np.abs(absmax).max(initial=0.0) * 2.0**-11)


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
    with np.errstate(over="ignore", invalid="ignore"):
        values = layer.floats(NESTED_TABLE, (256,))[codes] * scale + np.float32(offset)
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"{info.file}: {info.name}: scales must be finite, but block "
            f"{int((~np.isfinite(values)).argmax())} has none"
        )
    return np.asarray(values, np.float32)
