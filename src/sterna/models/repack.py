"""A packed weight in another format, where nothing is lost or where floats are rounded anew."""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.errors import RequestError
from sterna.formats import PackedWeight
from sterna.models import packing
from sterna.models.storages import Floats, Levels

__all__ = ["repacked"]


def repacked(weight: PackedWeight, format: str | None, threads: int, name: str) -> PackedWeight:
    """`weight` in `format` (None: its own).

    Integer weights go to formats that have all their levels, with the same scales: the same matrix.
    Floats are rounded as those of a checkpoint. Raises RequestError for any other pair, since to
    round what is rounded already would lose twice; `name` says whose weight it is.
    """
    if format is None or weight.format == format:
        return weight
    old, new = weight.format, formats.get(format)
    values = weight.unpacked(threads=threads)
    if not old.scaled:
        return packing.pack_floats([Floats("f32", values)], new.name, threads, name, "row")
    part = _levels(weight, values) if old.codebook and old.scales.single else None
    if part is None or not packing.holds(new, part, part.group):
        raise RequestError(
            f"{name}: packed as {old.name}, it runs in formats that hold its levels and scales, "
            f"but got {new.name}; load the checkpoint that it was made from"
        )
    return packing.pack([part], packing.Choice(new.name, keeps=True), threads, name)


def _levels(weight: PackedWeight, levels: np.ndarray) -> Levels:
    assert weight.format.codebook is not None
    kinds = tuple(weight.format.codebook.levels)
    return Levels(kinds, levels, weight.scales * np.float32(weight.format.value))
