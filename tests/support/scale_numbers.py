"""The numbers that a scale of a group is held as, whatever they are: those that formats have."""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.formats import Format
from sterna.formats.scales import E4M3, F16, GroupScales, MicroBlockScales, SuperBlockScales
from sterna.formats.scales.numbers import ScaleNumber

__all__ = ["NUMBERS", "any_scales", "finite_values", "largest_weight", "number_of"]

#: Products of larger scales with levels and activations would leave float32.
LARGE = 2.0**100


def number_of(f: Format) -> ScaleNumber:
    """The number of a format with scales in groups; the floats of super-blocks count as
    f16, also where a format holds them in float32.

    Those of micro-blocks are of float32, which holds any E4M3.
    """
    if isinstance(f.scales, MicroBlockScales):
        return E4M3
    return f.scales.number if isinstance(f.scales, GroupScales) else F16


NUMBERS = sorted(
    {number_of(f) for f in map(formats.get, formats.names()) if f.scales.group},
    key=lambda number: number.name,
)


def finite_values(number: ScaleNumber) -> np.ndarray:
    """All that it can hold, float32: what each of its words stands for, but infinities and NaN."""
    words = np.arange(1 << 8 * number.dtype.itemsize, dtype=f"u{number.dtype.itemsize}")
    with np.errstate(over="ignore"):
        values = number.decoded(words.view(number.dtype))
    return values[np.isfinite(values)]


def any_scales(number: ScaleNumber, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Any values that it holds up to LARGE, float32 of this shape, tiny as often as large."""
    values = finite_values(number)
    return rng.choice(values[np.abs(values) <= LARGE], shape)


def largest_weight(f: Format) -> float:
    """The largest scale times the largest level of a format with scales in groups."""
    assert f.codebook is not None
    wide = isinstance(f.scales, SuperBlockScales) and f.scales.wide
    if wide or isinstance(f.scales, MicroBlockScales):
        return float(np.finfo(np.float32).max)
    return (
        float(finite_values(number_of(f)).max()) * max(-f.codebook.low, f.codebook.high) * f.value
    )
