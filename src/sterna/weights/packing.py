"""From a storage's levels or floats to a packed weight, in the requested format or their own.

Levels go unchanged to the narrowest format that has them all. The caller may choose another format;
it changes only weights that are floats or may be used as floats. Of ternary weights, which are 0 or
plus or minus a scale, it rounds the scale at most.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.errors import RequestError, shown
from sterna.formats import Format, PackedWeight
from sterna.formats.codec import pack_codes, packed_scale
from sterna.formats.weighted import rounded
from sterna.weights.storages import Floats, Levels

__all__ = ["Choice", "can_keep", "choose", "has_levels", "layer_scale", "pack", "pack_floats"]

#: Default formats of levels, the fewest bits first.
WIDEST = "i8"
NARROWEST = ("i1", "i2", "i2p", "i4", "pot4", "pot4z", WIDEST)
FIVE_BITS = "q5_0"  # for groups of 32 k or a multiple of that


@dataclass(frozen=True)
class Choice:
    """The format of a layer's rows; consecutive layers with equal choices may be one weight.

    keeps: levels stay unchanged; otherwise floats are stored as they are, or rounded.
    """

    format: str
    keeps: bool


def choose(part: Levels | Floats, asked: str | None) -> Choice:
    """Choose the requested format, or the layer's own: the narrowest with all levels, or its dtype.

    If rows are no whole blocks, `formats.fitting` replaces the format. Raises RequestError for a
    format that cannot hold the weights.
    """
    if isinstance(part, Floats):
        if asked is None:
            return Choice(part.format, False)
        return Choice(formats.fitting(formats.get(asked), part.bits.shape[1]).name, False)
    if asked is None:
        return Choice(_narrowest(part), True)
    format = formats.fitting(formats.get(asked), part.K)
    keeps = can_keep(format, part, part.group)
    if not keeps and part.as_floats is None and (format.scaled or not part.is_ternary):
        raise RequestError(
            "format: must have the checkpoint's levels, as i2, t5 and q8_0 have -1, 0 and 1, or be "
            f"of floats if these are all its levels, but got {shown(asked)}"
        )
    return Choice(format.name, keeps)


def _narrowest(part: Levels) -> str:
    """Return the format of the fewest bits that has a part's levels and groups of its scales."""
    if part.stored_format:
        own = formats.get(part.stored_format)
        other = own.takes_groups and part.group not in (0, own.scales.group)
        return f"{own}:g{part.group}" if other else own.name
    name = next(n for n in NARROWEST if has_levels(formats.get(n), part.kinds))
    if name == WIDEST and can_keep(formats.get(FIVE_BITS), part, part.group):
        return FIVE_BITS
    return f"{name}:g{part.group}" if part.group else name


def can_keep(format: Format, part: Levels, group: int) -> bool:
    """Whether a format has these levels, and scales for groups of this size (0: none)."""
    if part.stored_format:
        whole = not (group and format.scales.group) or group % format.scales.group == 0
        return whole and format.name.partition(":")[0] == part.stored_format
    same = format.scales.group == group
    if format.name == FIVE_BITS and group:
        same = group % format.scales.group == 0  # the scale of a longer group is repeated
    elif part.is_ternary and not group:
        same = format.scales.any_number  # a row's scale is repeated, and rounded to its type
    return same and has_levels(format, part.kinds)


def has_levels(format: Format, levels: Collection[int]) -> bool:
    """Whether a format has these levels, and its scales keep all of them.

    Scales of a few bits, or with minima, fit only the levels that were rounded with them.
    """
    return format.codebook is not None and format.scales.single and format.codebook.has_all(levels)


def pack(parts: list[Levels | Floats], choice: Choice, threads: int, name: str) -> PackedWeight:
    """Join the rows of layers of one choice into one weight.

    Raises RequestError, with `name`, for a shape that the format does not have.
    """
    format = formats.get(choice.format)
    if choice.keeps:
        levels = [part for part in parts if isinstance(part, Levels)]
        return _pack_levels(levels, format, threads, name)
    floats = [part if isinstance(part, Floats) else part.floats() for part in parts]
    return pack_floats(
        floats, choice.format, threads, name, layer_scale(formats.get(choice.format))
    )


def layer_scale(format: Format) -> str | None:
    """Where scales of a rounded layer lie: in rows, or None for the place in the format's name."""
    return None if ":" in format.name else "row"


def _pack_levels(parts: list[Levels], format: Format, threads: int, name: str) -> PackedWeight:
    M, K = sum(part.M for part in parts), parts[0].K
    format.check_shape(M, K, name)
    rule = format.codebook.code_rule if format.codebook else (0, 1)
    codes_of_bitnet = rule == (1, 1)  # a level -1..1 is the code 0..2
    if codes_of_bitnet and all(part.is_packed for part in parts):
        packed = [part.codes for part in parts]
        codes = _native.pack(format.layout.name, "bitnet", packed, 0, 1, None, threads)
    else:
        codes = pack_codes(format, [part.unpacked() for part in parts], threads)
    return PackedWeight(format, M, K, codes, _scale(parts, format))


def _scale(parts: list[Levels], format: Format) -> npt.NDArray[Any]:
    """Join the parts' scales, in the unit of the format's levels, which is a power of two."""
    unit = np.float32(1 / format.value)
    M, K = sum(part.M for part in parts), parts[0].K
    scales = format.scales.joined([(part.M, _of_groups(part, format)) for part in parts])
    return packed_scale(format, scales * unit, M, K)


def _of_groups(part: Levels, format: Format) -> npt.NDArray[np.float32]:
    """Return the scales of a part, repeated where the format has shorter groups."""
    if part.group == format.scales.group or (part.stored_format and not part.group):
        return part.scale
    if not part.group:
        return np.broadcast_to(part.scale.reshape(-1, 1), format.scales.shape(part.M, part.K))
    return np.repeat(part.scale, part.group // format.scales.group, axis=1)


def pack_floats(
    parts: list[Floats], asked: str, threads: int, name: str, scale: str | None = None
) -> PackedWeight:
    """Pack float rows in a format: with their own bits if it is theirs, else rounded.

    scale: "tensor" (one for each part) or "row", for a format with scales but without groups; None:
    the format's own.
    """
    format = formats.get(asked)
    M, K = sum(len(part.bits) for part in parts), parts[0].bits.shape[1]
    format.check_shape(M, K, name)
    if format.scaled:
        return _round_floats(parts, format, threads, scale)
    stored_so = all(part.format == format.name for part in parts)
    values = [part.bits if stored_so else part.values() for part in parts]
    return PackedWeight(format, M, K, pack_codes(format, values, threads), np.ones((), np.float32))


def _round_floats(
    parts: list[Floats], format: Format, threads: int, scale: str | None
) -> PackedWeight:
    made = [rounded(format, part.values(), scale, threads=threads) for part in parts]
    levels = [levels for levels, _ in made]
    if len(parts) == 1:
        scales = made[0][1]
    else:
        scales = np.concatenate([s if s.ndim else np.repeat(s, len(w)) for w, s in made])
    M, K = sum(len(part) for part in levels), levels[0].shape[1]
    codes = pack_codes(format, levels, threads)
    return PackedWeight(format, M, K, codes, packed_scale(format, scales, M, K))
