"""Tiles of the lookup-table formats, written out: what packed files of earlier versions hold."""

from __future__ import annotations

import numpy as np

# (base C, digits g, mirrored, bit planes) of the blocks of most of K, and of the rest.
LOOKUPS = {
    **dict.fromkeys(("tl1_0", "tl1_1"), ((3, 2, False, 1), None)),
    **dict.fromkeys(("tl2_0", "tl2_1"), ((3, 3, True, 1), (3, 2, False, 1))),
    **dict.fromkeys(("tmac2_0", "tmac2_1"), ((2, 4, False, 2), None)),
    "elut4": ((4, 2, False, 1), None),
    "elut5": ((5, 2, True, 1), None),
}


def lookup_blocks(codes: np.ndarray, base: int, g: int, mirrored: bool, planes: int) -> np.ndarray:
    """Codes [tiles, 64, K] as blocks of eight numbers (papers/native/lookup/codes.h)."""
    n, _, K = codes.shape
    digits = [codes >> p & 1 for p in range(planes)] if planes == 2 else [codes]
    powers = base ** np.arange(g)[::-1]
    numbers = [d.reshape(n, 64, K // g, g).astype(int) @ powers for d in digits]
    order = np.stack(numbers, axis=3).reshape(n, 64, -1, 8)  # [row][block][code]
    value = order - base**g // 2 if mirrored else order
    index = np.abs(value).transpose(0, 2, 3, 1)  # [tile][block][code][row]
    lines = [index[:, :, 2 * i] | index[:, :, 2 * i + 1] << 4 for i in range(4)]
    if mirrored:
        lines.append(sum((value < 0).transpose(0, 2, 3, 1)[:, :, i] << i for i in range(8)))
    rows = np.stack(lines, axis=2).reshape(n, -1, len(lines), 4, 16)  # byte 4r + j is row 16j + r
    return rows.swapaxes(3, 4).astype(np.uint8).reshape(n, -1)


def lookup_tiles(name: str, codes: np.ndarray) -> np.ndarray:
    """Codes uint8 [M, K], from 0 for the lowest level, as tiles uint8 [tiles, bytes]."""
    M, K = codes.shape
    tiles = np.zeros((-(-M // 64), 64, -(-K // 64) * 64), np.uint8)
    for m in range(M):
        tiles[m // 64, m % 64, :K] = codes[m]
    main, tail = LOOKUPS[name]
    fit = tiles.shape[2] // 48 * 48 if tail else tiles.shape[2]
    parts = [lookup_blocks(tiles[:, :, :fit], *main)]
    if tail and fit < tiles.shape[2]:
        parts.append(lookup_blocks(tiles[:, :, fit:], *tail))
    return np.concatenate(parts, axis=1)
