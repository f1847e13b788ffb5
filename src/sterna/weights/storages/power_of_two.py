"""Power-of-two weights as `quantization_config` describes them.

See docs/explanation/power-of-two.md.

    weight        E3P2: uint8 [M, ceil(K / 2)]; E5P1: uint8 [M, K]; E8P1: uint16 [M, K]
    weight_scale  positive floats: F32 () or [1] for a tensor, F32 [M] or [M, 1] for rows,
                  [M, K / N] for groups of N: F16, or F32 with values that F16 holds

A weight is sign * 2^e * scale. The words are those of formats/pot_encodings.py. If `zero_free` is
false, a field m = 0 of E3P2 is the weight 0, which has no sign, and any other m means e = m - 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.errors import RequestError, shown
from sterna.formats.arithmetic import first_index
from sterna.formats.power_of_two import PotLevels, check_scale
from sterna.weights.storages.base import F32, FLOATS, Floats, Layer, Levels
from sterna.weights.storages.quantization import PowerOfTwo

__all__ = ["description", "read", "recognises", "tensors"]

BAND = 1 << 20  # weights decoded at a time, into several numpy arrays of four bytes a weight
Words = npt.NDArray[Any]


def recognises(layer: Layer) -> bool:
    """Whether config.json names powers of two and does not exclude this layer."""
    return layer.quantization.powers is not None and layer.quantization.converts(layer.part.name)


def read(layer: Layer) -> Levels:
    """Read levels sign * 2^e, and check them: integers for E3P2, otherwise float32 in range."""
    stored = layer.quantization.powers
    assert stored is not None
    M, K = layer.shape
    scale = _scale(layer, stored)
    dtype = f"U{8 * stored.words.word.itemsize}"
    info = layer.checkpoint.require(f"{layer.part.name}.weight", (M, stored.words.words(K)), dtype)
    codes = np.asarray(layer.checkpoint.read(info.name))
    kinds: tuple[int, ...] = ()
    if stored.integer:
        codebook = formats.get(stored.format).codebook
        assert codebook is not None
        kinds = tuple(codebook.levels)
        levels: npt.NDArray[Any] = np.empty((M, K), np.int16 if stored.zero_free else np.int8)
    else:
        levels = np.empty((M, K), np.float32)
    below = _decode(layer, stored, codes, levels)
    with np.errstate(over="ignore"):  # refused below
        scale = np.ldexp(scale, below)
    _check_size(layer, levels, scale)
    return Levels(
        kinds,
        levels,
        scale,
        lambda: _floats(levels, scale),
        stored_format="" if kinds else stored.format,
    )


def tensors(levels: PotLevels, stored: PowerOfTwo) -> dict[str, Words]:
    """Make a checkpoint's tensors for a layer, by suffix: the inverse of `read`.

    Scales of groups become floats of 16 bits, as kernels take them. Raises RequestError for scales
    of another shape, and for a zero or an exponent that the encoding lacks; it names the element.
    """
    signs, exponents = levels.signs, levels.exponents
    M, K = levels.shape
    shapes = {"tensor": (), "row": (M,)}
    shape = shapes.get(stored.scale, (M, K // stored.group if stored.group else 0))
    if levels.scale.shape != shape:
        raise RequestError(
            f"{stored.encoding}: scale must have the shape {shape} for {stored.scale}, but got "
            f"{levels.scale.shape}"
        )
    if not stored.zero_free:
        exponents = np.where(signs == 0, 0, exponents.astype(np.int16) + 1)
        signs = np.where(signs == 0, 1, signs)
    scale = np.asarray(levels.scale, np.float32)
    if scale.ndim == 2:
        with np.errstate(over="ignore", under="ignore"):
            half = scale.astype(np.float16)
        half = np.maximum(half, np.finfo(np.float16).smallest_subnormal)  # 0 is no scale
        check_scale(half, M, K, stored.encoding)
        return {"weight": stored.words.encode(signs, exponents), "weight_scale": half}
    return {"weight": stored.words.encode(signs, exponents), "weight_scale": scale}


def _scale(layer: Layer, stored: PowerOfTwo) -> F32:
    """Read the scales as float32 (), [M] or [M, groups], finite and positive."""
    M, K = layer.shape
    group = stored.group
    if group and K % group:
        layer.fail("weight", f"input features in groups of {group}", f"K={K}")
    allowed = {"tensor": [(), (1,)], "row": [(M,), (M, 1)]}
    shapes = allowed.get(stored.scale, [(M, K // group)] if group else [])
    info = layer.info("weight_scale")
    if info.shape not in shapes or info.dtype not in FLOATS:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        layer.fail(
            "weight_scale",
            f"floats {wanted} for {stored.scale}",
            f"{info.dtype} {list(info.shape)}",
        )
    scale = layer.floats("weight_scale", info.shape)
    if (wrong := scale <= 0).any():
        at = first_index(wrong)
        mixed = "of both signs: " if (scale > 0).any() else ""
        got = f"{mixed}{scale[at]} at {list(at)}"
        layer.fail("weight_scale", "positive scales", got, "a weight's sign is a bit of its own")
    if group:
        with np.errstate(over="ignore", under="ignore"):
            exact = scale.astype(np.float16) == scale
        if not exact.all():
            at = first_index(~exact)
            rule = "scales of groups that a float of 16 bits holds"
            layer.fail("weight_scale", rule, f"{scale[at]} at {list(at)}", "store them as F16")
        return scale
    return scale.reshape(shapes[0])


def _decode(layer: Layer, stored: PowerOfTwo, codes: Words, levels: npt.NDArray[Any]) -> int:
    """Fill `levels` with sign * 2^(e - n) and return n, which is 0 below 2^128."""
    M, K = levels.shape
    words, step = stored.words, max(1, BAND // max(1, K))
    bands = [slice(start, start + step) for start in range(0, M, step)]
    for band in bands:
        if stray := words.stray(codes[band], K):
            row, word = stray
            at = [band.start + row, word]
            layer.fail(
                "weight",
                f"words of {stored.encoding}, unused bits and padding being 0",
                f"{int(codes[at[0], word]):#x} at {at}",
                "the file is damaged",
            )
    below = 0
    if stored.encoding == "E8P1" and codes.size:
        fields = codes >> words.shift & words.max_exponent
        below = max(0, int(fields.max()) - 127)
        if int(fields.min()) - below < -126:
            layer.fail("weight", "exponents of a span of 253 at most", int(fields.max()))
    for band in bands:
        signs, e = words.decode(codes[band], K)
        exponents = e.astype(np.int32) - below
        if not stored.zero_free:
            _zeros(layer, signs, exponents, band.start)
        levels[band] = np.ldexp(signs.astype(np.float32), exponents)
    return below


def _zeros(
    layer: Layer, signs: npt.NDArray[np.int8], fields: npt.NDArray[np.int32], first: int
) -> None:
    """Turn fields m into exponents m - 1, in place, and set the signs of m = 0 to 0."""
    zero = fields == 0
    if (wrong := zero & (signs < 0)).any():
        row, k = first_index(wrong)
        layer.fail("weight", "zeros without a sign", f"-0 at {[first + row, k]}")
    signs[zero] = 0
    fields -= ~zero


def _check_size(layer: Layer, levels: npt.NDArray[Any], scale: F32) -> None:
    """Refuse weights that overflow. The kernels' scales have room for 2^31."""
    if not levels.size:
        return
    most = 31 if levels.dtype == np.float32 else 7
    largest = max(float(levels.max()), -float(levels.min()), 2.0**most)
    if float(scale.max(initial=0)) * largest >= 2.0**128:
        remedy = "the file is damaged: weights of a model are small"
        layer.fail("weight_scale", "weights below 2^128", f"a scale of {scale.max()}", remedy)


def _floats(levels: npt.NDArray[Any], scale: F32) -> Floats:
    """Multiply to float32: exact except for subnormal results, since levels are powers of two."""
    values = levels.astype(np.float32)
    if scale.ndim == 2:
        values *= np.repeat(scale, values.shape[1] // scale.shape[1], axis=1)
    else:
        values *= scale.reshape(-1, 1)
    return Floats("f32", values)


def description(encoding: str, scale: str = "row", *, zero_free: bool = True) -> PowerOfTwo:
    """Describe a storage for `tensors`; RequestError for a combination that does not exist."""
    if encoding not in PowerOfTwo.ENCODINGS:
        names = ", ".join(PowerOfTwo.ENCODINGS)
        raise RequestError(f"encoding: must be one of {names}, but got {shown(encoding)}")
    made = PowerOfTwo(encoding, zero_free, scale)
    if problem := made.problem():
        raise RequestError(f"{encoding}: {problem}")
    return made
