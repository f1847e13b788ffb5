"""Converts packed weights to torch tensors and back: codes and scales, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sterna import formats
from sterna.formats import PackedWeight

__all__ = ["ALIGNMENT", "packed_tensors", "packed_weight"]

ALIGNMENT = 64  # bytes: a vector, as kernels load it, and how torch allocates


def packed_tensors(packed: PackedWeight) -> tuple[Tensor, Tensor]:
    """Return (codes, scale) of a packed weight, as `torch.ops.sterna.linear` takes them.

    They share the memory of the packed weight if it is writable and aligned.
    """
    f = packed.format
    rows = len(packed.codes) * f.tile_rows
    scale, groups = f.scales.for_kernels(packed.scale, packed.M, rows, f.unit, f.value)
    lines = groups[0] if groups is not None else scale
    none = torch.empty(0, dtype=torch.float32)
    return _tensor(packed.codes), none if lines is None else _tensor(lines)


def packed_weight(codes: Tensor, scale: Tensor, format: str, M: int, K: int) -> PackedWeight:
    """Invert `packed_tensors`, sharing their memory; the scales are those of rows."""
    f = formats.get(format)
    lines = scale.numpy()
    if not f.scales.group:  # units are powers of two
        lines = lines[:M] / np.float32(f.unit) if f.scaled else np.ones((), np.float32)
    return PackedWeight(f, M, K, codes.numpy(), np.asarray(lines))


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    if array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return torch.from_numpy(array)
    # A mapped file is not to be written to, and torch has no tensors that only read.
    dtype = torch.uint8 if array.dtype == np.uint8 else torch.float32
    tensor = torch.empty(array.shape, dtype=dtype)
    tensor.numpy()[...] = array
    return tensor
