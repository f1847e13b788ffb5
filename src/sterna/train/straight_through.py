"""Shared code of the training quantisers: straight-through rounding, and exact means."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sterna.errors import NonFiniteError
from sterna.formats import arithmetic

__all__ = ["Rounded", "finite", "mean_abs", "scaled_gradient", "straight_through"]


class Rounded(NamedTuple):
    """Weights [M, K] as a quantiser rounds them.

    format: a name of `sterna formats` whose codebook has these levels. levels: int8 or int16 [M,
    K], or the values themselves where the format is of floats; scale: float32, () or [M], or [M, K
    / group]; values: levels times scales, float32 [M, K], whose gradient goes to the parameters.
    bf16: whether products are those of `sterna.train.bf16_product`.
    """

    format: str
    levels: Tensor
    scale: Tensor
    values: Tensor
    bf16: bool = False


def straight_through(value: Tensor, of: Tensor) -> Tensor:
    """Return `value` with its gradient going to `of` unchanged (Bengio, arXiv 1308.3432).

    of: finite, of value's shape. Zero is added to the value, which keeps its bits.
    """
    return value.detach() + (of - of.detach())


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """x, whose gradient is multiplied by `factor`."""
    return x.detach() + (x - x.detach()) * factor


def finite(name: str, t: Tensor) -> Tensor:
    """Convert a tensor to float32; NonFiniteError for NaN and infinities, if training diverged."""
    if not bool(torch.isfinite(t).all()):
        at = arithmetic.first_index((~torch.isfinite(t)).cpu().numpy())
        value = float(t.detach()[at])
        raise NonFiniteError(
            f"{name}: must be finite, but element {at} is {value}; training diverged"
        )
    return t.float()


def mean_abs(w: Tensor) -> Tensor:
    """Mean of |w| over the last dimension, float32: numpy's bits, which are those of `quantize`."""
    if w.is_cpu:
        rows: Any = w.detach().reshape(-1, w.shape[-1]).numpy()
        means = torch.from_numpy(np.atleast_1d(arithmetic.mean_abs(rows, 1)))
        return means.reshape(w.shape[:-1])
    return w.detach().abs().mean(-1, dtype=torch.float64).float()
