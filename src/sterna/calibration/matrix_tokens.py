"""Layers with scales in groups on a matrix unit: from how many tokens on its tiles gain.

A product of tiles has the sums of one group only, and vectors multiply each by its scales. The unit
that a matrix unit extends does both in one loop, which may be faster for tens of tokens: it needs
no activations in bf16. From how many tokens on tiles are faster differs between formats and CPUs,
so it is measured, once for a machine. No choice changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sterna import _native
from sterna.calibration.measured import LEAST_BYTES
from sterna.calibration.token_counts import TokenCount, crossing, samples_of, step_seconds
from sterna.formats import PackedWeight
from sterna.formats.scales import RowScales
from sterna.runtime import Threads

__all__ = ["COUNTS", "fewest_on_tiles", "known", "tile_tokens"]

#: Tokens of the steps that are timed.
COUNTS = (24, 32, 64, 128)
_TILES, _VECTORS = 0, _native.most_vector_tokens + 1
# What a measurement may find: the fewest tokens that tiles are for.
_CROSSINGS = (*COUNTS[1:], _VECTORS)
_COUNT = TokenCount(
    "tokens of tiles",
    "STERNA_TILE_TOKENS",
    range(_native.few_tokens + 1, _VECTORS + 1),
    _CROSSINGS,
    budget_s=0.25,
)


def tile_tokens(
    weights: Iterable[PackedWeight], threads: Threads, isa: str, weight_bytes: int
) -> dict[str, int]:
    """Find the fewest tokens to multiply on tiles, for formats with scales in groups.

    The number comes from `STERNA_TILE_TOKENS` (17..256, for all such formats), or from an earlier
    measurement on this machine, or from a measurement now with some of the weights, if a token
    reads more bytes (`weight_bytes`) than any cache has. A format that is not in the result takes
    tiles for all steps of more than 16 tokens, as do weights with a scale for each row. Empty for a
    unit without tiles. Raises RequestError for another STERNA_TILE_TOKENS.
    """
    tiled = weights if _native.has_tiles(isa) else ()
    grouped = [w for w in tiled if w.format.scaled and not isinstance(w.format.scales, RowScales)]
    samples = samples_of(grouped)
    return _COUNT.choose(samples, _measured, threads, isa, weight_bytes >= LEAST_BYTES)


def known(threads: Threads, isa: str) -> dict[str, int]:
    """Return what was measured so far on this machine, for each format; 0: from 17 on."""
    return _COUNT.known(threads, isa)


def fewest_on_tiles(seconds: Mapping[tuple[int, int], float]) -> int:
    """Return the number that costs least over all steps; 0 unless vectors gain.

    seconds: the time of a step by its number of tokens (COUNTS) and the number from which on tiles
    are taken: 0, for all; or 256, for none. Each step weighs the same.
    """
    return crossing(seconds, _CROSSINGS, before=_VECTORS, after=_TILES, usual=_TILES)


def _measured(
    packed: Sequence[PackedWeight], threads: Threads, isa: str, budget_s: float
) -> int | None:
    """Measure `fewest_on_tiles` for these weights; None if the machine is too busy to tell."""
    ways = [(n, fewest) for n in COUNTS for fewest in (_TILES, _VECTORS)]
    seconds = step_seconds(packed, "tile_tokens", ways, threads, isa, budget_s)
    return None if seconds is None else fewest_on_tiles(seconds)
