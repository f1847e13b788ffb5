"""torchao's integer weights, as it flattens tensors for safetensors (transformers' TorchAoConfig).

    _weight_qdata       int8 [M, K]          IntxUnpackedToInt8Tensor (1 to 8 bits), Int8Tensor
                        int8 [M, K/2]        Int4Tensor: levels of four bits, even k in low halves
    _weight_scale       float [M, groups], [M, 1] or [1, 1]; of Int4Tensor [groups, M]
    _weight_zero_point  integers or floats, of the scale's shape; absent: zeros
    _weight_int_data    int8 [M, K/4]        BitNetPacked2bitLinearWeight: four trits of a row in a
                                             byte, the first highest, two bits with a sign each
    _weight_scale       float ()

A weight is scale (q - zero), but scale q + zero for Int4Tensor. If zeros are whole numbers, the
result is levels, in the narrowest format that has them; otherwise it is floats. torchao rounds the
activations of such layers to 8 bits or not at all; here layers of levels round them, with a scale
of max |x| / 127.

Layers with further tensors are refused: layouts for GPU kernels (scale_and_zero), and activations
with stored scales. These names are those of torchao 0.18.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.files.words import words
from sterna.formats.arithmetic import first_index
from sterna.weights.storages.base import F32, FLOATS, TERNARY, Floats, Layer, Levels
from sterna.weights.storages.integers import narrowest

PREFIX = "_weight_"
SUFFIXES = tuple(
    PREFIX + name
    for name in words("""
        qdata scale zero_point int_data scale_and_zero per_tensor_scale act_pre_scale
        act_quant_scale act_quant_zero_point
    """)
)
QDATA, SCALE, ZERO, TRITS = (PREFIX + name for name in ("qdata", "scale", "zero_point", "int_data"))
#: Tensors that other layouts and schemes have in addition to codes.
_REFUSED = SUFFIXES[4:]


def recognises(layer: Layer) -> bool:
    """Whether there are codes of these names."""
    return layer.has(QDATA) or layer.has(TRITS)


def read(layer: Layer) -> Levels | Floats:
    """Read the levels, and check them."""
    for name in _REFUSED:
        if layer.has(name):
            layer.fail(
                name,
                "weights of integers whose activations have no scale of their own",
                "another layout",
                "save it with Int8WeightOnlyConfig or IntxWeightOnlyConfig",
            )
    if layer.has(TRITS):
        return _trits(layer)
    M, K = layer.shape
    info = layer.info(QDATA)
    halved = info.shape == (M, K // 2) and K % 2 == 0
    if info.dtype not in ("I8", "U8") or not (halved or (info.dtype, info.shape) == ("I8", (M, K))):
        rule = f"I8 [{M}, {K}], or [{M}, {K // 2}] of two levels"
        got = f"{info.dtype} {list(info.shape)}"
        layer.fail(QDATA, rule, got, "other layouts are made for a GPU's kernels")
    stored = np.asarray(layer.checkpoint.read(info.name))
    if not halved:
        return _affine(layer, stored.astype(np.int16), _scale(layer, False), False)
    halves = stored.view(np.uint8)
    nibbles = np.stack([halves & 15, halves >> 4], axis=-1).reshape(M, K).astype(np.int16)
    return _affine(layer, (nibbles ^ 8) - 8, _scale(layer, True), True)


def _affine(layer: Layer, levels: npt.NDArray[Any], scale: F32, added: bool) -> Levels | Floats:
    """Compute scale (levels - zero), or scale levels + zero if the zero is `added`."""
    M, K = layer.shape
    zero = _zero(layer, scale.shape, added)
    if not zero.any():
        return narrowest(levels, scale)
    if not added and (zero == np.rint(zero)).all():
        moved = levels - np.repeat(zero, K // scale.shape[1], axis=1)
        if moved.min() >= -128 and moved.max() <= 127:
            return narrowest(moved, scale)
    groups = levels.reshape(M, scale.shape[1], -1).astype(np.float32)
    s, z = scale[:, :, None], zero[:, :, None]
    made = groups * s + z if added else (groups - z) * s
    return Floats("f32", np.ascontiguousarray(made, np.float32).reshape(M, K))


def _scale(layer: Layer, turned: bool) -> F32:
    """Read the scales as float32 [M, groups]; turned: they are stored as [groups, M]."""
    M, K = layer.shape
    shape = layer.info(SCALE).shape
    if shape in ((), (1,), (1, 1)):
        flat = layer.floats(SCALE, shape).reshape(1, 1)
        return np.ascontiguousarray(np.broadcast_to(flat, (M, 1)))
    if shape == (M,):
        return layer.floats(SCALE, shape).reshape(M, 1)
    ordered = shape[::-1] if turned else shape
    if len(shape) != 2 or ordered[0] != M or not ordered[1] or K % ordered[1]:
        rule = f"[groups of K={K}, {M}]" if turned else f"[{M}, groups of K={K}]"
        layer.fail(SCALE, f"scales {rule}", list(shape))
    scale = layer.floats(SCALE, shape)
    return np.ascontiguousarray(scale.T if turned else scale)


def _zero(layer: Layer, shape: tuple[int, ...], added: bool) -> F32:
    """Read the zero points as float32 [M, groups]; zeros if there are none."""
    if not layer.has(ZERO):
        return np.zeros(shape, np.float32)
    info = layer.info(ZERO)
    turned = layer.info(QDATA).shape != layer.shape
    stored_shapes = (shape[::-1],) if turned else (shape, shape[:1], (1, 1), (1,), ())
    if info.shape not in stored_shapes:
        layer.fail(ZERO, f"zero points {list(stored_shapes[0])}", list(info.shape))
    if info.dtype in FLOATS:
        values = layer.floats(ZERO, info.shape)
    elif info.dtype in ("I8", "U8", "I32", "I64") and not added:
        values = np.asarray(layer.checkpoint.read(info.name)).astype(np.float32)
    else:
        layer.fail(ZERO, "zero points of floats, or of integers", info.dtype)
    if turned:
        values = values.T
    elif values.ndim < 2 or values.shape != shape:
        values = np.broadcast_to(values.reshape(-1, 1), shape)
    return np.ascontiguousarray(values, np.float32)


def _trits(layer: Layer) -> Levels:
    M, K = layer.shape
    info = layer.checkpoint.require(f"{layer.part.name}.{TRITS}", (M, K // 4), ("U8", "I8"))
    if K % 4:
        layer.fail(TRITS, "input features in fours, for packed trits", K)
    scale = layer.info(SCALE)
    if scale.shape not in ((), (1,)):
        layer.fail(SCALE, "one float", f"{scale.dtype} {list(scale.shape)}")
    stored = np.asarray(layer.checkpoint.read(info.name)).view(np.uint8)
    codes = np.stack([stored >> shift & 3 for shift in (6, 4, 2, 0)], axis=-1).reshape(M, K)
    if (codes == 2).any():
        layer.fail(TRITS, "codes of -1, 0 and 1", f"a code 2 at {list(first_index(codes == 2))}")
    trits = np.where(codes == 3, -1, codes.astype(np.int8)).astype(np.int8)
    return Levels(TERNARY, trits, layer.floats(SCALE, scale.shape).reshape(()))
