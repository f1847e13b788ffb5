"""NVFP4 and MXFP4: E2M1 floats of four bits, as compressed-tensors and modelopt write them.

    weight_packed, or weight     uint8 [M, K / 2]   two codes in a byte, the first k in the low half
    weight_scale                 float8_e4m3fn [M, K / 16]: NVFP4; uint8 [M, K / 32]: MXFP4, E8M0
    weight_global_scale          float ()           NVFP4 of compressed-tensors, which divides
    weight_scale_2               float ()           NVFP4 of modelopt, which multiplies

A weight is code * scale. NVFP4's scale is weight_scale / weight_global_scale, or weight_scale *
weight_scale_2; in layers it is weight_scale times a float32. MXFP4's is a power of two.
"""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.formats import mxfp4, nvfp4
from sterna.formats.scaled_floats import U8, ScaledFloats
from sterna.weights.storages.base import F32, Floats, Layer, Levels
from sterna.weights.storages.fp8 import powers

NV_GROUP, MX_GROUP = 16, 32
#: Twice the value of each code, the levels of mxfp4.
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def recognises(layer: Layer) -> bool:
    """Whether there are bytes of two codes, with scales next to them."""
    return layer.has("weight_scale") and any(
        layer.has(s) and layer.info(s).dtype == "U8" and layer.info(s).shape == _packed_shape(layer)
        for s in ("weight_packed", "weight")
    )


def read(layer: Layer) -> Levels:
    """Read the codes and scales, and check them."""
    M, K = layer.shape
    suffix = "weight_packed" if layer.has("weight_packed") else "weight"
    stored = layer.info("weight_scale")
    group = NV_GROUP if stored.dtype == "F8_E4M3" else MX_GROUP
    if K % group:
        layer.fail(suffix, f"rows of whole groups of {group}", K)
    if stored.shape != (M, K // group) or stored.dtype not in ("F8_E4M3", "U8", "F8_E8M0"):
        layer.fail(
            "weight_scale",
            f"F8_E4M3 [{M}, {K // NV_GROUP}] (NVFP4) or U8 [{M}, {K // MX_GROUP}]",
            f"{stored.dtype} {list(stored.shape)}",
        )
    codes = codes_of(np.asarray(layer.checkpoint.read(layer.info(suffix).name)))
    scales = np.asarray(layer.checkpoint.read(stored.name)).view(np.uint8)
    if group == NV_GROUP:
        return _nvfp4(layer, codes, e4m3_scales(layer, "weight_scale", scales))
    return mxfp4_levels(codes, powers(layer, "weight_scale", scales))


def codes_of(pairs: U8) -> U8:
    """Unpack bytes of two codes, the first in the low half."""
    return np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)


def _packed_shape(layer: Layer) -> tuple[int, int]:
    M, K = layer.shape
    return M, K // 2


def _nvfp4(layer: Layer, codes: U8, scales: F32) -> Levels:
    """Combine codes [M, K] and scales [M, groups] with the one of the tensor."""
    if not layer.has("weight_global_scale"):
        return nvfp4_levels(codes, scales, _one(layer, "weight_scale_2"))
    divisor = _one(layer, "weight_global_scale")
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.float32(1) / divisor
    if not np.isfinite(factor):
        layer.fail("weight_global_scale", "a number with an inverse, other than 0", divisor)
    return nvfp4_levels(codes, scales, factor, np.asarray(scales / divisor, np.float32))


def nvfp4_levels(codes: U8, scales: F32, factor: F32, products: F32 | None = None) -> Levels:
    """Combine codes [M, K] with scales of E4M3 [M, K / 16] and a factor of all of them.

    products: scales times the factor, if the file has another rule for them.
    """
    M, K = codes.shape
    groups = TWICE[codes].reshape(M, -1, NV_GROUP)
    levels = np.where(np.signbit(scales)[:, :, None], -groups, groups).reshape(M, K)
    of_rows = np.full((M, 1), factor / np.float32(2), np.float32)
    both = np.concatenate([of_rows, np.abs(scales)], axis=1).reshape(M, 1, -1)

    def floats() -> Floats:
        whole = np.asarray(scales * factor if products is None else products, np.float32)
        values = (TWICE[codes] / np.float32(2)).reshape(M, -1, NV_GROUP) * whole[:, :, None]
        return Floats("f32", np.asarray(values, np.float32).reshape(M, K))

    return Levels(nvfp4.LEVELS, levels, both, floats, stored_format="nvfp4")


def e4m3_scales(layer: Layer, suffix: str, scales: U8) -> F32:
    """Convert bytes of E4M3 to float32, checked."""
    e4m3 = formats.get("fp8")
    assert isinstance(e4m3, ScaledFloats)
    values = e4m3.values[scales]
    if np.isnan(values).any():
        layer.fail(suffix, "finite scales", "NaN")
    return np.asarray(values, np.float32)


def _one(layer: Layer, suffix: str) -> F32:
    """Read the scale of the tensor, float32 ()."""
    shape = layer.info(suffix).shape
    if shape not in ((), (1,)):
        layer.fail(suffix, "one float", f"shape {list(shape)}")
    return layer.floats(suffix, shape).reshape(())


def mxfp4_levels(codes: U8, scale: F32) -> Levels:
    """Combine codes [M, K] with powers of two [M, K / 32]."""
    levels, halves = TWICE[codes], scale / np.float32(2)

    def floats() -> Floats:
        groups = levels.reshape(*scale.shape, MX_GROUP) * halves[:, :, None]
        return Floats("f32", np.asarray(groups, np.float32).reshape(codes.shape))

    return Levels(mxfp4.LEVELS, levels, halves, floats, stored_format="mxfp4")
