"""Valid random codes of any format, made at the speed of a copy.

In every tile layout blocks of k are outermost, so the codes of whole blocks are valid codes of a
tile of any width. So one random tile is packed, and then repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.bench.machine import (
    Progress,
    available_bytes,
    out_of_cache_bytes,
    require_bytes,
)
from sterna.errors import RequestError
from sterna.formats import Format, PackedWeight, codec

__all__ = [
    "Arena",
    "arenas",
    "codes_bytes",
    "constant_scales",
    "fill",
    "packed_bytes",
    "random_pool",
]

Codes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

BLOCK_K = 64  # integer layouts pad K to this; blocks that do not divide it have no invalid bytes
MAX_COPIES = 4096  # copies of a small matrix: each is an object with scales of its own
POOL_K = 251 * BLOCK_K  # a prime number of blocks, so that hardly any tile repeats its neighbour


def codes_bytes(f: Format, M: int, K: int) -> int:
    """Count the bytes of a packed matrix's codes, padding included."""
    return f.n_tiles(M) * f.tile_bytes(K)


def packed_bytes(f: Format, M: int, K: int) -> int:
    """Count the bytes that one pass over a packed matrix reads: codes and scales."""
    return codes_bytes(f, M, K) + f.scale_bytes(M, K)


@lru_cache(maxsize=16)
def random_pool(format: str, deviation: float = 1.0) -> tuple[Codes, F32]:
    """Return (codes, scale) of normally distributed weights, read-only, the same on every call.

    deviation: the weights' standard deviation. If the format has scales, it only changes the scale,
    not the codes. The scale is one block's, and is meant for all blocks.
    """
    f = formats.get(format)
    values = np.random.default_rng(0).standard_normal((f.tile_rows, POOL_K), np.float32)
    if f.scales.group:
        assert f.codebook is not None
        # Groups may be longer than the pool's blocks, which tiles have in common.
        own_group = f.scales.block == f.scales.group
        block = math.gcd(f.scales.group, BLOCK_K) if own_group else f.scales.block
        levels, scales = f.quantize_blocks(values.reshape(-1, block))
        scale = f.scales.typical(scales, deviation)
        # The blocks' own scales have signs and minima. One for all would leave a mean to all
        # weights, and a model of them answers every prompt alike.
        if f.scales.minima:
            of_codes, of_minima = scale.reshape(2, -1)  # a number; a super-block's groups' follow
            mean = of_codes[0] * levels.mean() * _mean(of_codes[1:])
            of_minima[0] = -mean / _mean(of_minima[1:])
        else:
            levels[1::2] = f.negated(levels[1::2])
        levels = levels.reshape(values.shape)
    else:
        levels, scale = f.quantize(values if f.scaled else values * np.float32(deviation), "tensor")
        scale = np.asarray(scale * np.float32(deviation) if f.scaled else 1, np.float32)
    pool: Codes = codec.codes_of(f, levels).reshape(-1)
    pool.flags.writeable = False
    return pool, np.asarray(scale, np.float32)


def _mean(of_groups: F32) -> float:
    """Average the groups' numbers; 1 where a block has none."""
    return float(of_groups.mean()) if of_groups.size else 1.0


def constant_scales(f: Format, M: int, K: int, scale: F32, into: Codes | None = None) -> Array:
    """Repeat `scale` for all rows and groups of a matrix, as a PackedWeight has them.

    into: uint8 for a grouped format's lines, scale_bytes(M, K) of them; new memory by default.
    """
    tile = f.scales.repeated(scale, f.layout, K)
    if not f.scales.group:
        return tile
    lines = _native.alloc(f.scale_bytes(M, K)) if into is None else into
    lines = lines.reshape(f.n_tiles(M), -1)
    lines[:] = tile
    return lines


def fill(codes: Codes, pool: Codes, start: int = 0) -> None:
    """Write the pool over and over into flat `codes`, beginning with the pool's byte `start`."""
    head = min(codes.size, pool.size - start)
    codes[:head] = pool[start : start + head]
    whole = (codes.size - head) // pool.size
    tail = head + whole * pool.size
    codes[head:tail].reshape(whole, pool.size)[:] = pool
    codes[tail:] = pool[: codes.size - tail]


class Arena:
    """A stretch of a format's codes, from which weights of any shape are cut.

    Many shapes share the memory of one, and the copies of each are still far larger than the cache.
    """

    def __init__(self, format: str, nbytes: int) -> None:
        """nbytes: the least size, rounded up to whole blocks."""
        self.format: Format = formats.get(format)
        self._pool, self._scale = random_pool(format)
        block = self.format.tile_bytes(BLOCK_K)
        self._codes = _native.alloc(-(-nbytes // block) * block)
        fill(self._codes, self._pool)

    @property
    def nbytes(self) -> int:
        """Bytes of codes."""
        return int(self._codes.size)

    def weights(self, M: int, K: int, count: int | None = None) -> list[_native.Weight]:
        """Cut weights [M, K] that follow one another in memory: `count`, or as many as fit.

        Raises RequestError if not even one fits.
        """
        f = self.format
        f.check_shape(M, K)
        tiles, tile_bytes = f.n_tiles(M), f.tile_bytes(K)
        size = tiles * tile_bytes
        room = self.nbytes // size if size else 0
        if room < 1:
            raise RequestError(
                f"{f.name}: working set must hold a matrix of {M}x{K}, {size / 1e6:.1f} MB, "
                f"but has {self.nbytes / 1e6:.1f} MB"
            )
        copies = min(room, MAX_COPIES, count or room)
        per_copy = f.scale_bytes(M, K) if f.scales.group else 0
        scales = _native.alloc(max(1, copies * per_copy))
        made = []
        for i in range(copies):
            codes = self._codes[i * size : (i + 1) * size].reshape(tiles, -1)
            block_scales = scales[i * per_copy : (i + 1) * per_copy]
            placed = constant_scales(f, M, K, self._scale, block_scales)
            made.append(PackedWeight(f, M, K, codes, placed).native())
        return made


def arenas(
    shapes: Iterable[tuple[str, int, int]], working_set_mb: int | None, progress: Progress
) -> dict[str, Arena]:
    """Make an arena for each format of `shapes` (format, M, K), with room for its largest matrix.

    working_set_mb: 10^6 bytes for each format; None is `out_of_cache_bytes`, or an even share of a
    quarter of the free memory if that is less. Raises RequestError for a matrix that a format
    cannot hold, or for too little memory, before it allocates anything.
    """
    sizes: dict[str, int] = {}
    for name, M, K in shapes:
        f = formats.get(name)
        f.check_shape(M, K, f"{M}x{K}")
        sizes[name] = max(sizes.get(name, 0), codes_bytes(f, M, K))
    if working_set_mb is not None:
        if working_set_mb < 0:
            raise RequestError(f"working set: must be at least 0 MB, but got {working_set_mb}")
        wanted = 1_000_000 * working_set_mb
    else:
        share = available_bytes() // 4 // max(1, len(sizes))
        wanted = min(share, out_of_cache_bytes())
    sizes = {name: max(nbytes, wanted) for name, nbytes in sizes.items()}
    require_bytes(
        sum(sizes.values()),
        f"weights of {', '.join(sizes)}",
        "choose fewer --formats, smaller shapes or a smaller --working-set",
    )
    made = {}
    for name, nbytes in sizes.items():
        progress(f"{name}: {nbytes / 1e6:,.0f} MB of random weights")
        made[name] = Arena(name, nbytes)
    return made
