"""From pixels to rows of patches, and from rows of patches to those of tokens.

Sums have one order, so that all machines have the same bits.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = [
    "average_pool",
    "in_lines",
    "in_squares",
    "interpolated",
    "lines_and_columns",
    "patch_rows",
    "side_by_side",
]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Row = TypeVar("Row", np.float32, np.int32)


def patch_rows(pixels: F32, patch: int) -> F32:
    """Return the rows of an image's patches, from left to right and down.

    pixels: [channels, height, width]; what fills no patch at the right and below is left out, as a
    convolution does. A row has the patch's channels one after the other, as a convolution's weights
    have them: float32 [patches, channels * patch * patch].
    """
    channels, height, width = pixels.shape
    height, width = height // patch * patch, width // patch * patch
    whole = pixels[:, :height, :width]
    tiled = whole.reshape(channels, height // patch, patch, width // patch, patch)
    return np.asarray(tiled.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch))


def average_pool(rows: F32, height: int, width: int, edge: int) -> F32:
    """Return the means of squares of edge * edge patches of an image of height * width patches."""
    tiled = rows.reshape(height // edge, edge, width // edge, edge, -1)
    total = np.zeros((height // edge, width // edge, rows.shape[1]), np.float32)
    for y in range(edge):
        for x in range(edge):
            total += tiled[:, y, :, x]
    return np.asarray((total / np.float32(edge * edge)).reshape(-1, rows.shape[1]))


def side_by_side(rows: F32, height: int, width: int, edge: int) -> F32:
    """Return squares of edge * edge patches of an image of height * width patches, as rows of all
    their features, line by line: float32 [squares, edge * edge * features]."""
    tiled = rows.reshape(height // edge, edge, width // edge, edge, -1)
    return np.asarray(tiled.transpose(0, 2, 1, 3, 4).reshape(-1, edge * edge * rows.shape[1]))


def in_lines(rows: F32, tall: int, side: int) -> F32:
    """Return the patches of tiles of side * side, which stand in `tall` lines, as one image:
    float32 [height, width, features] of rows of patches of the tiles in turn."""
    tiled = rows.reshape(tall, -1, side, side, rows.shape[1])
    return np.asarray(tiled.transpose(0, 2, 1, 3, 4).reshape(tall * side, -1, rows.shape[1]))


def lines_and_columns(grid: tuple[int, int, int] | None) -> I32:
    """Return 0, the line and the column of each patch, int32 [patches, 3]."""
    assert grid is not None
    _, height, width = grid
    places = np.zeros((height, width, 3), np.int32)
    places[..., 1] = np.arange(height)[:, None]
    places[..., 2] = np.arange(width)
    return places.reshape(-1, 3)


def in_squares(
    rows: npt.NDArray[Row], grid: tuple[int, int, int] | None, edge: int
) -> npt.NDArray[Row]:
    """Reorder rows of patches, line by line, so that those of a square of edge * edge follow each
    other."""
    assert grid is not None
    tiled = rows.reshape(grid[1] // edge, edge, grid[2] // edge, edge, -1)
    return np.asarray(tiled.transpose(0, 2, 1, 3, 4).reshape(rows.shape))


def interpolated(table: F32, side: int, height: int, width: int) -> F32:
    """Return the rows of a table of side * side places, stretched over height * width, corner to
    corner: means of the four nearest."""
    y, below = _taps(height, side)
    x, right = _taps(width, side)
    total = np.zeros((height, width, table.shape[1]), np.float32)
    for down in (0, 1):
        for across in (0, 1):
            rows = table[
                np.minimum(y + down, side - 1)[:, None] * side + np.minimum(x + across, side - 1)
            ]
            share = (below if down else 1 - below)[:, None] * (right if across else 1 - right)
            total += rows * share[..., None]
    return total.reshape(-1, table.shape[1])


def _taps(size: int, side: int) -> tuple[I64, F32]:
    """Return the place before each of so many points, and how far each is on its way to the
    next."""
    points = np.arange(size, dtype=np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    before = np.floor(points)
    return before.astype(np.int64), points - before
