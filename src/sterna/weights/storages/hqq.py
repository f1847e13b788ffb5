"""HQQ's integer weights, as its HQQLinear saves itself (transformers' HqqConfig).

    W_q    uint8 [rows / n, columns]   n codes of 8, 4, 2 or 1 bits in a byte, those of the first
                                       rows / n rows highest; codes of 5 and 6 bits take 8
           int32 [rows / 10, columns]  ten codes of 3 bits in a word, rows padded to a multiple
    scale  float, zero  float          [rows, 1] or [1, columns]

rows and columns are those of the weight [M, K] laid out anew, for groups of `group_size`: with axis
1 a row is a group, neighbours of k; with axis 0 a column is one, weights M K / group_size apart.
The further tensors are the layer's settings: whole numbers, and names as character codes. With
view_as_float the bytes of W_q are called floats.

A weight is scale (code - zero), in float32. HQQ fits its zeros, so they are no whole numbers, and
the weights become floats. If they are whole and groups are neighbours of k, these are levels.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sterna.files.words import words
from sterna.weights.storages.base import FLOATS, Floats, Layer, Levels
from sterna.weights.storages.integers import narrowest

CODES, SCALE, ZERO = "W_q", "scale", "zero"
#: The name of a packing -> bits of a code, and codes of a stored integer.
PACKINGS = {
    "8bit_u8": (8, 1),
    "4bit_u8": (4, 2),
    "3bit_32": (3, 10),
    "2bit_u8": (2, 4),
    "1bit_u8": (1, 8),
}
FLOAT_BYTES = {"BF16": 2, "F16": 2, "F32": 4}
SUFFIXES = words("""
    W_q scale zero nbits group_size shape axis packing unpack_view_dtype view_as_float
    quant_scale quant_zero compute_dtype offload_meta encoded_state_dict stores_quant_config
    channel_wise optimize round_zero scale_q zero_q
""")


def recognises(layer: Layer) -> bool:
    """Whether there are codes of this name."""
    return layer.has(CODES)


def read(layer: Layer) -> Levels | Floats:
    """Read the codes, scales and zeros, and check them."""
    M, K = layer.shape
    for suffix in ("scale_q", "zero_q"):
        if layer.has(suffix):
            remedy = "quantise with quant_scale=False and quant_zero=False"
            layer.fail(suffix, "scales and zeros that are floats", "quantised ones", remedy)
    axis = _number(layer, "axis")
    if axis not in (0, 1):
        layer.fail("axis", "0 or 1", axis)
    group = _number(layer, "group_size", K if axis else M)
    if group < 1 or M * K % group:
        layer.fail("group_size", f"a divisor of {M} x {K}", group)
    groups = M * K // group
    shape = (groups, group) if axis else (group, groups)
    each = (groups, 1) if axis else (1, groups)
    codes = _codes(layer, shape)
    scale, zero = (layer.floats(suffix, each) for suffix in (SCALE, ZERO))
    if axis and K % group == 0 and (zero == np.rint(zero)).all():
        levels = codes - zero
        if levels.min() >= -128 and levels.max() <= 127:
            return narrowest(levels.reshape(M, K), scale.reshape(M, -1))
    return Floats("f32", np.ascontiguousarray((codes - zero) * scale).reshape(M, K))


def _codes(layer: Layer, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Unpack the codes, [rows, columns]."""
    packing = _name(layer, "packing")
    if packing not in PACKINGS:
        layer.fail("packing", f"one of {', '.join(PACKINGS)}", packing or "none")
    bits, count = PACKINGS[packing]
    word = np.dtype(np.int32 if bits == 3 else np.uint8)
    viewed = bool(_number(layer, "view_as_float", 0))
    dtypes = tuple(FLOATS) if viewed else ("I32" if bits == 3 else "U8",)
    info = layer.info(CODES)
    wanted = (
        math.ceil(shape[0] / count),
        shape[1] * word.itemsize // FLOAT_BYTES.get(info.dtype, word.itemsize),
    )
    if info.dtype not in dtypes or info.shape != wanted or (bits != 3 and shape[0] % count):
        layer.fail(
            CODES,
            f"{' or '.join(dtypes)} {list(wanted)}, of {count} codes for {shape[0]} rows",
            f"{info.dtype} {list(info.shape)}",
        )
    stored = np.ascontiguousarray(layer.checkpoint.read(info.name)).view(word)
    shifts = range(bits * (count - 1), -1, -bits)
    parts = [stored >> shift & ((1 << bits) - 1) for shift in shifts]
    return np.concatenate(parts)[: shape[0]].astype(np.float32)


def _number(layer: Layer, suffix: str, default: int | None = None) -> int:
    """Read a whole number among the settings; one without a default has to be there."""
    if default is not None and not layer.has(suffix):
        return default
    info = layer.info(suffix)
    if info.dtype in FLOATS or info.shape not in ((), (1,)):
        layer.fail(suffix, "a whole number", f"{info.dtype} {list(info.shape)}")
    return int(np.asarray(layer.checkpoint.read(info.name)).reshape(()))


def _name(layer: Layer, suffix: str) -> str:
    """Read a name among the settings."""
    info = layer.info(suffix)
    if info.dtype != "U8" or len(info.shape) != 1 or info.shape[0] > 64:
        layer.fail(suffix, "the characters of a name", f"{info.dtype} {list(info.shape)}")
    return bytes(np.asarray(layer.checkpoint.read(info.name))).decode("latin-1")
