"""Linear layers of torch and of transformers -> packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sterna import formats, ops
from sterna.errors import NonFiniteError, RequestError
from sterna.formats import PackedWeight
from sterna.formats.arithmetic import F32
from sterna.formats.i2 import absmean
from sterna.weights.storages.ternary_masters import SMALLEST

__all__ = ["BITNET", "kind_of", "packed_layer"]

BITNET = ("BitLinear", "AutoBitLinear")
_BITNET_MODULE = "transformers.integrations.bitnet"  # compared by name: transformers may be missing
_TERNARY = "i2"


def kind_of(layer: nn.Module) -> str | None:
    """Linear, BitLinear or AutoBitLinear; None for all else, subclasses too.

    A subclass of nn.Linear may compute anything, so it is not packed.
    """
    kind = type(layer)
    if kind is nn.Linear:
        return "Linear"
    if kind.__module__ == _BITNET_MODULE and kind.__name__ in BITNET:
        return kind.__name__
    return None


def packed_layer(layer: nn.Module, format: str | None) -> PackedWeight:
    """Pack the weights of a layer; raises as `SternaLinear.of`."""
    kind = kind_of(layer)
    if kind is None:
        raise RequestError(
            "layer: must be an nn.Linear, or a BitLinear or AutoBitLinear of transformers, "
            f"but got {type(layer).__module__}.{type(layer).__name__}"
        )
    weight: Tensor = layer.weight  # type: ignore[assignment]
    if weight.device.type != "cpu":
        raise RequestError(f"weight: must be on the CPU, but is on {weight.device}; move it there")
    if kind == "Linear":
        if format is None:
            raise RequestError("format: must be given for an nn.Linear, such as i8 or q8_0")
        return ops.quantize(_float32(weight), format)
    ternary = _bit_linear if kind == "BitLinear" else _auto_bit_linear
    levels, scale = ternary(layer, weight)
    return ops.pack(levels, scale, format=formats.get(_TERNARY if format is None else format))


def _float32(t: Tensor) -> F32:
    values: F32 = t.detach().to(torch.float32).contiguous().numpy()
    return values


def _scale(layer: nn.Module) -> F32:
    scale: Any = layer.weight_scale
    return _float32(scale).reshape(())


def _bit_linear(layer: nn.Module, weight: Tensor) -> tuple[npt.NDArray[Any], F32]:
    """Read trits + 1 (row i * M / 4 + r in bits 2i of byte row r) and the divisor of the sums."""
    codes = torch.cat([(weight >> 2 * i) & 3 for i in range(4)])
    if bool((codes == 3).any()):
        raise RequestError("weight: must be of codes 0, 1 and 2, but got a code 3; it is damaged")
    scale = _scale(layer)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.asarray(np.float32(1) / scale)
    if not np.isfinite(inverse):
        raise NonFiniteError(f"weight_scale: must have a finite inverse, but got {scale}")
    return codes.to(torch.int8).numpy() - np.int8(1), inverse


def _auto_bit_linear(layer: nn.Module, weight: Tensor) -> tuple[npt.NDArray[Any], F32]:
    """Online, float masters, rounded as BitNet does; offline, trits as floats and their scale."""
    values = _float32(weight)
    if layer.online_quant:
        if not np.isfinite(values).all():
            raise NonFiniteError("weight: masters must be finite, but got NaN or an infinity")
        levels, scale = absmean(values, None, SMALLEST)
        return levels, np.asarray(scale, np.float32)
    if not np.isin(values, (-1, 0, 1)).all():
        raise RequestError(
            "weight: must be -1, 0 and 1, as the layer has a weight_scale, but got others; "
            "masters have the quantization_mode online"
        )
    return values.astype(np.int8), _scale(layer)
