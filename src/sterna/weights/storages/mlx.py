"""MLX's folders: affine integers of 2 to 8 bits, with a scale and a bias for each group of k; and
MXFP4, MXFP8 and NVFP4, with a scale of eight bits.

    weight  uint32 [M, K bits / 32]   codes of neighbours of k, the first in the lowest bits
    scales  float [M, groups]; or uint8, E8M0 for 32 k (mxfp4, mxfp8) or E4M3 for 16 k (nvfp4)
    biases  float [M, groups]; absent with scales of eight bits

The matrices of experts, of `switch_mlp`, are stacks of these: [experts, ...].

A weight is scale * code + bias. Where bias = -scale and codes are 0, 1 and 2, the weights are
ternary. Others are levels with a minimum, of two to five bits, if 16-bit floats hold the scales and
biases; else they are float32, as are those of six and eight bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.weights.storages import fp4, fp8
from sterna.weights.storages.base import F32, TERNARY, Floats, Layer, Levels
from sterna.weights.storages.integers import WORD_BITS

#: Formats with minima, by the bits of a code, those of the longest groups first.
AFFINE: dict[int, tuple[str, ...]] = {2: ("q2_0", "q4_1"), 3: ("q4_1",), 4: ("q4_1",), 5: ("q5_1",)}
BITS = (2, 3, 4, 5, 6, 8)
#: Modes with scales of bytes -> bits of a code, and k of a scale.
MINIFLOATS = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}

Codes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


def recognises(layer: Layer) -> bool:
    """Whether there are words of codes with scales, and with biases or scales of bytes."""
    if not (layer.has("scales") and layer.has("weight")) or layer.dtype != "U32":
        return False
    return layer.has("biases") or layer.info("scales").dtype == "U8"


def read(layer: Layer) -> Levels | Floats:
    """Read the codes, scales and biases, and check them."""
    if layer.info("scales").dtype == "U8":
        return _minifloats(layer, *_stored_bytes(layer, ()))
    return _weights(*_stored(layer, ()))


def of_experts(stack: Layer, count: int) -> Callable[[int], Levels | Floats]:
    """Return the reader of one expert's matrix; the stack's tensors have an axis of experts more.

    Raises as `read`.
    """
    if stack.info("scales").dtype == "U8":
        of_all, bytes_of_all, mode = _stored_bytes(stack, (count,))
        return lambda expert: _minifloats(stack, of_all[expert], bytes_of_all[expert], mode)
    words, scale, bias, bits = _stored(stack, (count,))
    return lambda expert: _weights(words[expert], scale[expert], bias[expert], bits)


def _stored_bytes(layer: Layer, lead: tuple[int, ...]) -> tuple[Words, Codes, str]:
    """Return words, scales of a byte each, and the mode; lead: axes before rows."""
    M, K = layer.shape
    words, scales = layer.info("weight"), layer.info("scales")
    for mode, (bits, group) in MINIFLOATS.items():
        shapes = (*lead, M, K * bits // WORD_BITS), (*lead, M, K // group)
        if K % group == 0 and (words.shape, scales.shape) == shapes:
            read = layer.checkpoint.read
            return np.asarray(read(words.name)), np.asarray(read(scales.name)), mode
    rule = f"scales of {' or '.join(MINIFLOATS)} for M={M}, K={K}, and codes that fit"
    return layer.fail("scales", rule, f"{list(scales.shape)} and {list(words.shape)}")


def _minifloats(layer: Layer, words: Words, scales: Codes, mode: str) -> Levels | Floats:
    raw = np.ascontiguousarray(words).view(np.uint8)
    if mode == "nvfp4":
        of_groups = fp4.e4m3_scales(layer, "scales", scales)
        return fp4.nvfp4_levels(fp4.codes_of(raw), of_groups, np.ones((), np.float32))
    scale = fp8.powers(layer, "scales", scales)
    if mode == "mxfp8":
        return fp8.scaled("fp8", layer, raw, scale, fp8.MX_GROUP)
    return fp4.mxfp4_levels(fp4.codes_of(raw), scale)


def _stored(layer: Layer, lead: tuple[int, ...]) -> tuple[Words, F32, F32, int]:
    """Return words, scales, biases and the bits of a code; lead: axes before rows."""
    M, K = layer.shape
    words = layer.info("weight")
    bits = next((b for b in BITS if words.shape == (*lead, M, K * b // WORD_BITS)), 0)
    if not bits or K * bits % WORD_BITS:
        axes = "".join(f"{axis}, " for axis in lead)
        expected = f"U32 [{axes}M, K bits / 32] with M={M}, K={K}"
        layer.fail("weight", expected, list(words.shape))
    stored = layer.info("scales").shape
    groups = stored[-1] if len(stored) == len(lead) + 2 else 0
    if not groups or K % groups:
        layer.fail("scales", f"a scale for each of some groups of K={K}", f"{groups} groups")
    scale, bias = (layer.floats(suffix, (*lead, M, groups)) for suffix in ("scales", "biases"))
    return np.asarray(layer.checkpoint.read(words.name)), scale, bias, bits


def _weights(words: Words, scale: F32, bias: F32, bits: int) -> Levels | Floats:
    codes = _codes(words, bits).reshape(len(words), -1)
    return _ternary(codes, scale, bias) or _affine(codes, scale, bias, bits)


def _codes(words: Words, bits: int) -> Codes:
    """Unpack rows of words, a stream of bits each."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return np.asarray(raw[:, :, None] >> shifts & np.uint8((1 << bits) - 1), np.uint8)
    each = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(raw), -1, bits)
    return np.packbits(each, axis=2, bitorder="little")


def _ternary(codes: Codes, scale: F32, bias: F32) -> Levels | None:
    """Return ternary weights as levels; None if they are others."""
    if not np.array_equal(bias, -scale) or codes.max(initial=0) > 2 or not _are_halves(scale):
        return None
    levels = codes.astype(np.int8) - np.int8(1)
    return Levels(TERNARY, levels, scale, lambda: _floats(codes, scale, bias))


def _affine(codes: Codes, scale: F32, bias: F32, bits: int) -> Levels | Floats:
    group = codes.shape[1] // scale.shape[1]
    for name in AFFINE.get(bits, ()) if _are_halves(scale) and _are_halves(bias) else ():
        own = formats.get(name).scales.group
        if group % own == 0:
            both = np.repeat(np.stack([scale, bias], axis=2), group // own, axis=1)
            kinds, levels = tuple(range(1 << bits)), codes.astype(np.int8)
            return Levels(
                kinds, levels, both, lambda: _floats(codes, scale, bias), stored_format=name
            )
    return _floats(codes, scale, bias)


def _are_halves(x: F32) -> bool:
    """Whether 16-bit floats hold these numbers."""
    with np.errstate(over="ignore"):
        return np.array_equal(x.astype(np.float16), x)


def _floats(codes: Codes, scale: F32, bias: F32) -> Floats:
    groups = codes.reshape(*scale.shape, -1) * scale[:, :, None] + bias[:, :, None]
    return Floats("f32", np.asarray(groups, np.float32).reshape(codes.shape))
