"""Measures the ways of reading memory on this machine, at its present speed.

Ways take turns over data out of cache: slices of weights, and pages of keys and values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.calibration.measured import usual_seconds
from sterna.calibration.readings import Reading, Readings, current
from sterna.formats.layout import Layout
from sterna.runtime import Threads, cache_bytes

__all__ = ["CANDIDATES", "Mood", "measured"]

Codes = npt.NDArray[np.uint8]
Costs = dict[str, float]
_Way = TypeVar("_Way", Reading, bool)

#: The candidates. One stream with a prefetch of a page is best on Zen 4 and 5, of wide formats
#: into L2 and less far; four streams are best on Xeons.
CANDIDATES: dict[str, tuple[Reading, ...]] = {
    "few_bits": (
        Reading(1, 4096, 4096),
        Reading(1, 4096, 2048),
        Reading(1, 4096, 8192),
        Reading(2, 4096, 4096),
        Reading(4, 512, 2048),
        Reading(4, 1024, 1024),
    ),
    "many_bits": (
        Reading(1, 4096, 4096),
        Reading(1, 4096, 1024, True),
        Reading(1, 4096, 1536, True),
        Reading(1, 4096, 4096, True),
        Reading(4, 512, 2048),
        Reading(4, 1024, 1024),
        Reading(4, 512, 1024, True),
    ),
}
#: The code layouts whose weights are read for each.
_LAYOUTS = {"few_bits": ("b2",), "many_bits": ("b4", "b8")}
#: Seconds for trying weights of each kind and pages, without making them.
WEIGHTS_S, PAGES_S = 0.15, 0.1
_BYTES = 128 << 20  # that are read, or as many as are twice a cache
_MOST_BYTES = 512 << 20
# Of weights that a way reads at a time, about a millisecond's: so each is timed often, and what
# disturbs a moment disturbs one time of many.
_SLICE_BYTES = 32 << 20
_K = 2560
_KV_HEADS, _HEAD_DIM, _GROUP = 4, 128, 4  # of the pages


class Mood(NamedTuple):
    """One measurement: the memory's speed, and what ways cost, as multiples of the cheapest.

    few_bits, many_bits: by the str() of a Reading. next_page: by "True" and "False".
    """

    gb_s: float
    few_bits: Costs
    many_bits: Costs
    next_page: Costs


def measured(threads: Threads, isa: str) -> Mood | None:
    """Measure the costs now; None where memory is too short for trying, or the machine too busy."""
    default = current(threads)
    caches = cache_bytes()
    nbytes = min(max(_BYTES, 2 * caches[max(caches)]), _MOST_BYTES)
    try:
        gb_s, few_bits = _of_weights(threads, isa, default, "few_bits", nbytes)
        _, many_bits = _of_weights(threads, isa, default, "many_bits", nbytes)
        pages = _of_pages(threads, isa, default, nbytes)
    except MemoryError:
        return None
    finally:
        default.set(threads)
    if few_bits is None or many_bits is None or pages is None:
        return None
    return Mood(round(gb_s, 2), few_bits, many_bits, pages)


def _of_weights(
    threads: Threads, isa: str, default: Readings, kind: str, nbytes: int
) -> tuple[float, Costs | None]:
    """Time weights of a kind: the memory's speed, and the costs of its candidates.

    Slices of layouts have their turns in order, so that one read again has left the cache.
    """
    layouts = _LAYOUTS[kind]
    slices = [
        _slices(name, nbytes // _SLICE_BYTES, _SLICE_BYTES // len(layouts)) for name in layouts
    ]
    gb_s = _native.read_gb_s(threads, [codes for codes, _ in slices[0][:4]])
    turns = itertools.cycle(zip(*slices, strict=True))

    def seconds_of(reading: Reading) -> float:
        Readings(**{**default._asdict(), kind: reading}).set(threads)
        return sum(_native.time_linear([w], 1, isa, threads, 1)[0] for _, w in next(turns))

    usual: Reading = getattr(default, kind)
    return gb_s, _costs([usual, *CANDIDATES[kind]], seconds_of, WEIGHTS_S)


def _slices(name: str, count: int, nbytes: int) -> list[tuple[Codes, _native.Weight]]:
    layout = Layout(name)
    rows, tile = layout.tile_rows, layout.tile_bytes(_K)
    tiles = nbytes // tile
    scale = _native.alloc(tiles * rows * 4).view("float32")
    slices = []
    for _ in range(count):
        codes = _native.alloc(tiles * tile)
        codes.fill(0b01010101)  # written: untouched pages are all one page, which is in the cache
        of_tiles = codes.reshape(tiles, tile)
        slices.append((codes, _native.Weight(name, tiles * rows, _K, of_tiles, scale, 2)))
    return slices


def _of_pages(threads: Threads, isa: str, default: Readings, nbytes: int) -> Costs | None:
    """Time keys and values of one token's attention, of the default type, in pages."""
    page = _native.page_positions
    positions = _SLICE_BYTES // _native.kv_bytes(1, _KV_HEADS, _HEAD_DIM, "i16") // page * page
    turns = itertools.cycle(
        [
            _native.AttentionTimer(_KV_HEADS, _HEAD_DIM, positions, "i16")
            for _ in range(nbytes // _SLICE_BYTES)
        ]
    )

    def seconds_of(ahead: bool) -> float:
        default._replace(next_page=ahead).set(threads)
        return next(turns).seconds(isa, threads, _GROUP)

    return _costs([True, False], seconds_of, PAGES_S)


def _costs(
    ways: Sequence[_Way], seconds_of: Callable[[_Way], float], budget_s: float
) -> Costs | None:
    usual = usual_seconds(ways, seconds_of, budget_s)
    if usual is None:
        return None
    least = min(usual.values())
    return {str(way): round(seconds / least, 4) for way, seconds in usual.items()}
