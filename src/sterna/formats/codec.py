"""Conversions between real weights, levels and scales, and tiles, the same for all formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.formats.arithmetic import F32
from sterna.formats.base import Format

__all__ = ["by_rule", "codes_of", "pack_codes", "packed_scale", "real_values"]

Array = npt.NDArray[Any]


def by_rule(format: Format, w: F32, scale: str | None = None) -> tuple[Array, F32]:
    """Round real weights float32 [M, K] by the format's own rule.

    `weighted.rounded` begins with this, and ends here for formats whose rule is a training rule.
    Returns (levels int8 [M, K], scales as their layout has them). scale: "tensor" or "row", for
    formats with scales of that kind; None: the format's own. Raises RequestError for a shape or a
    weight that the format cannot hold.
    """
    scales = format.scales
    if not scales.group:
        return format.quantize(w, scale)
    assert format.codebook is not None
    M, K = w.shape
    format.check_shape(M, K)
    scales.check_weights(w, format.name)
    if scales.default != "group":  # blocks of a row share a number
        return format.quantize(w)
    blocks = w.reshape(-1, scales.block)
    levels, made = scales.settled(blocks, *format.quantize_blocks(blocks), format.codebook)
    return levels.reshape(M, K), made.reshape(scales.shape(M, K))


def real_values(format: Format, values: Array, scales: F32) -> F32:
    """Compute the weights float32 [M, K] from levels or floats [M, K] and their scales."""
    return format.scales.weights(values, scales, format.value)


def pack_codes(
    format: Format,
    values: Array | Sequence[Array],
    threads: int = 1,
    order: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.uint8]:
    """Pack levels int8 [M, K] (values, for a float format) into tiles uint8 [tiles, bytes].

    values: an array, or several with the rows of one matrix in sequence. order: indices of the rows
    to pack first, second, and so on. Raises as `Format.check_shape`.
    """
    parts = [values] if isinstance(values, np.ndarray) else list(values)
    format.check_shape(sum(len(part) for part in parts), parts[0].shape[1])
    return _packed(format, parts, threads, order)


def codes_of(format: Format, values: Array, threads: int = 1) -> npt.NDArray[np.uint8]:
    """Pack the tiles of one matrix of any K: groups may be cut."""
    return _packed(format, [values], threads, None)


def _packed(
    format: Format, parts: Sequence[Array], threads: int, order: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.uint8]:
    source, rule = ("levels", format.codebook.code_rule) if format.codebook else ("words", (0, 1))
    words = [np.ascontiguousarray(format.encode(part)) for part in parts]
    return _native.pack(format.layout.name, source, words, *rule, order, threads)


def packed_scale(format: Format, scales: Array, M: int, K: int) -> Array:
    """Convert scales of a matrix [M, K] to its PackedWeight's; raises as `Format.check_scales`."""
    return format.scales.pack(format.check_scales(scales, M, K), format.layout, M, K)
