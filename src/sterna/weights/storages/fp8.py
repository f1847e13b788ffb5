"""FP8: bytes of E4M3 with scales, as DeepSeek, Qwen, compressed-tensors, fbgemm and modelopt write.

    weight            float8_e4m3fn [M, K]
    weight_scale_inv  float [M / 128, K / 128]   a scale for each block (fp8); () for all weights
    weight_scale      float (), [1], [M], [M, 1] or of blocks (compressed-tensors, fbgemm_fp8,
                      modelopt, which has [M / 128, 1, K / 128, 1]); uint8 [M, K / 32]: powers of
                      two (MXFP8)

Despite its name, weight_scale_inv multiplies: a weight is scale * code, rounded once to float32.
Blocks have the size of `weight_block_size` in quantization_config, 128 x 128 if it says none; the
last ones may be cut. Layers
take float activations, so that the scales of inputs (input_scale, input_scale_ub,
activation_scale), by which other runtimes round them to FP8, have no use here.
"""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.errors import NonFiniteError
from sterna.formats.scaled_floats import U8, ScaledFloats
from sterna.weights.storages.base import F32, FLOATS, Floats, Layer

BLOCK, MX_GROUP = (128, 128), 32
POWERS = ("F8_E8M0", "U8")  # dtypes of powers of two
#: Scales of inputs, which are not used.
OF_INPUTS = ("input_scale", "input_scale_ub", "activation_scale", "input_global_scale")
SCALES = ("weight_scale_inv", "weight_scale")


def recognises(layer: Layer) -> bool:
    """Whether the weight is E4M3."""
    return layer.has("weight") and layer.dtype == "F8_E4M3"


def read(layer: Layer) -> Floats:
    """Read the codes and the scales of each row, and check them."""
    info = layer.checkpoint.require(f"{layer.part.name}.weight", layer.shape, "F8_E4M3")
    suffix = next((s for s in SCALES if layer.has(s)), SCALES[1])
    scale, k = _scale(layer, suffix)
    codes = np.asarray(layer.checkpoint.read(info.name)).view(np.uint8)
    return scaled("fp8", layer, codes, scale, k)


def scaled(name: str, layer: Layer, codes: U8, scale: F32, k: int) -> Floats:
    """Combine codes [M, K] with scales [M, groups] of `k` weights, the last of which may be cut.

    Weights whose scales the format does not hold become float32. NonFiniteError for a code that is
    no number.
    """
    format = formats.get(name)
    assert isinstance(format, ScaledFloats)
    K = codes.shape[1]
    if name == "fp8" and ((codes & 127) == 127).any():
        raise NonFiniteError(
            f"{layer.info('weight').file}: {layer.part.name}.weight: weights must be finite, but "
            "got NaN; the file is damaged or its training diverged"
        )
    if K % format.group == 0 and k % format.group == 0 and format.fits(scale):
        of_groups = np.repeat(scale, k // format.group, axis=1)[:, : K // format.group]
        return Floats(name, format.joined(codes, of_groups))
    of_weights = np.repeat(scale, k, axis=1)[:, :K]
    return Floats("f32", np.asarray(format.values[codes] * of_weights, np.float32))


def _scale(layer: Layer, suffix: str) -> tuple[F32, int]:
    """Read the scales as float32 [M, groups], and the number of k that share one."""
    M, K = layer.shape
    shape, block = layer.info(suffix).shape, _block(layer)
    if shape in ((), (1,)) or (shape == (1, 1) and block is None):
        one = _values(layer, suffix, shape).reshape(1, 1)
        return np.ascontiguousarray(np.broadcast_to(one, (M, 1))), K
    if shape in ((M,), (M, 1)):
        return _values(layer, suffix, shape).reshape(M, 1), K
    if layer.info(suffix).dtype == "U8" and shape == (M, K // MX_GROUP) and K % MX_GROUP == 0:
        return _values(layer, suffix, shape), MX_GROUP
    rows, k = block or BLOCK
    blocks = -(-M // rows), -(-K // k)
    if shape not in (blocks, (blocks[0], 1, blocks[1], 1)):
        layer.fail(
            suffix,
            f"one scale, or [{M}, 1] or {list(blocks)} of them, for blocks of {rows}x{k}",
            list(shape),
        )
    values = _values(layer, suffix, shape).reshape(blocks)
    return np.ascontiguousarray(np.repeat(values, rows, axis=0)[:M]), k


def _values(layer: Layer, suffix: str, shape: tuple[int, ...]) -> F32:
    """Read scales of a float type, or of E8M0, powers of two, as float32."""
    info = layer.info(suffix)
    if info.dtype not in (*POWERS, *FLOATS):
        layer.fail(suffix, "scales of floats", info.dtype)
    if info.dtype not in POWERS:
        return layer.floats(suffix, shape)
    exponents = np.asarray(layer.checkpoint.read(info.name)).view(np.uint8)
    return powers(layer, suffix, exponents)


def powers(layer: Layer, suffix: str, exponents: U8) -> F32:
    """Convert E8M0 bytes e to 2^(e - 127), float32; NonFiniteError for 255, which is NaN."""
    if (exponents == 255).any():
        raise NonFiniteError(
            f"{layer.info(suffix).file}: {layer.part.name}.{suffix}: scales must be finite, but "
            "got NaN; the file is damaged"
        )
    return np.asarray(np.ldexp(np.float32(1), exponents.astype(np.int32) - 127), np.float32)


def _block(layer: Layer) -> tuple[int, int] | None:
    """Read the rows and columns of a block from quantization_config; None if it has none."""
    settings = layer.checkpoint.config.get("quantization_config")
    size = settings.get("weight_block_size") if isinstance(settings, dict) else None
    if size is None and isinstance(settings, dict):
        groups = settings.get("config_groups")
        for scheme in groups.values() if isinstance(groups, dict) else ():
            weights = scheme.get("weights") if isinstance(scheme, dict) else None
            size = weights.get("block_structure") if isinstance(weights, dict) else None
    if size is None:
        return None
    fits = isinstance(size, list) and len(size) == 2
    if not fits or not all(type(n) is int and 0 < n < 1 << 20 for n in size):
        layer.fail("weight", "weight_block_size of two whole numbers in config.json", size)
    return size[0], size[1]
