"""A packed weight in another format, where nothing is lost or where floats are rounded anew."""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.errors import RequestError
from sterna.formats import Format, PackedWeight
from sterna.weights import packing
from sterna.weights.storages import Floats, Levels

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
    values = old.unpack(weight, "scalar", threads)
    if not old.scaled:
        return packing.pack_floats([Floats("f32", values)], new.name, threads, name, "row")
    part = None if old.levels is None or _has_superblocks(old) else _levels(old, weight, values)
    if part is None or _has_superblocks(new) or not packing.holds(new, part, part.group):
        raise RequestError(
            f"{name}: packed as {old.name}, it runs in formats that hold its levels and scales, "
            f"but got {new.name}; load the checkpoint that it was made from"
        )
    return packing.pack([part], packing.Choice(new.name, keeps=True), threads, name)


def _levels(format: Format, weight: PackedWeight, levels: np.ndarray) -> Levels:
    assert format.levels is not None
    low, high = format.levels
    kinds = format.codebook or tuple(range(low, high + 1, format.step))
    return Levels(kinds, levels, weight.scales * np.float32(format.value))


def _has_superblocks(format: Format) -> bool:
    """Whether scales are whole numbers of a few bits, or come with minima: they are made to fit."""
    return format.minima or format.block != format.group
