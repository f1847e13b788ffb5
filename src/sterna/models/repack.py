"""A packed weight in another format, where nothing is lost or where floats are rounded anew."""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.errors import RequestError
from sterna.formats import PackedWeight

__all__ = ["repacked"]


def repacked(weight: PackedWeight, format: str | None, threads: int, name: str) -> PackedWeight:
    """`weight` in `format` (None: its own).

    Integer weights go to formats that have all their levels, with the same scales: the same matrix.
    Floats are rounded as those of a checkpoint. Raises RequestError for any other pair, since to
    round what is rounded already would lose twice; `name` says whose weight it is.
    """
    if format is None or format == weight.format:
        return weight
    old, new = formats.get(weight.format), formats.get(format)
    new.check_shape(weight.M, weight.K, name)
    if old.integer and not _holds(new, old):
        raise RequestError(
            f"{name}: packed as {old.name}, it runs in formats that hold its levels and scales, "
            f"but got {new.name}; load the checkpoint that it was made from"
        )
    values = old.unpack(weight, "scalar", threads)
    scale = weight.scale if old.integer else np.float32(1)
    if not old.integer and new.integer:
        values, rounded = new.rounded(values, "row")
        scale = new.packed_scale(rounded, weight.M, weight.K)
    codes = new.pack_codes(values, threads)
    return PackedWeight(new.name, weight.M, weight.K, codes, scale)


def _holds(new: formats.Format, old: formats.Format) -> bool:
    """Whether every level of `old` is one of `new`, of the same worth, under the same scales."""
    if not (new.levels and old.levels) or new.group or old.group or new.codebook or old.codebook:
        return False
    (low, high), (first, last) = new.levels, old.levels
    steps = old.step % new.step == 0 and (first - low) % new.step == 0
    return new.value == old.value and low <= first and last <= high and steps
