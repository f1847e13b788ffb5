"""Packed layers become layers of training that start from the same levels and scales."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sterna import ops
from sterna.errors import RequestError
from sterna.torch import SternaLinear
from sterna.train.pareto import ParetoLinear
from sterna.train.quant_linear import QuantLinear

__all__ = ["unpack_for_training"]

#: Levels -> ParetoQ's bits, and the range of a row over the scale of a level.
_BITS = {(-1, 1): (1, 1.0), (-1, 0, 1): (1.58, 1.5), (-3, -1, 1, 3): (2, 4.0)}
_FOUR_BITS = tuple(range(-8, 8))


def unpack_for_training(model: nn.Module) -> list[str]:
    """Replace each SternaLinear by a ParetoLinear of the same weights, in place; return the names.

    A packed model has lost its masters, so training starts from its levels and scales. The new
    layers round to these levels, and their trained scales start from the scales, up to a float32's
    last bit. Formats may have binary, ternary, i2p's or i4's levels, without groups; RequestError
    names another layer.
    """
    packed = {n: m for n, m in model.named_modules() if isinstance(m, SternaLinear)}
    made = {name: _trainable(name, layer) for name, layer in packed.items()}
    for name, layer in made.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    return list(made)


def _trainable(name: str, layer: SternaLinear) -> QuantLinear:
    weight = layer.packed
    f = weight.format
    levels = tuple(f.codebook.levels) if f.codebook is not None else ()
    bits, wide = (4, 1.0) if levels == _FOUR_BITS else _BITS.get(levels, (0, 0.0))
    if f.scales.group or not bits:
        raise RequestError(
            f"{name}: must have binary, ternary, i2p's or i4's levels and no groups to be trained "
            f"on, but has the format {f}; train the checkpoint that it was made from"
        )
    _, scale = ops.unpack(weight)
    worth = np.broadcast_to(np.reshape(scale * np.float32(f.value), (-1, 1)), (weight.M, 1))
    made = ParetoLinear(
        _tensor(ops.dequantize(weight)), layer.bias, bits=bits, rms_norm=layer.rms_norm
    )
    with torch.no_grad():
        made.weight_clip_val.copy_(_tensor(worth * np.float32(wide)))
    return made.train(layer.training)


def _tensor(a: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
    return torch.from_numpy(np.array(a, np.float32))
