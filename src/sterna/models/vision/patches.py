"""From pixels to rows of patches, and from rows of patches to those of tokens.

Sums have one order, so that all machines have the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["average_pool", "lines_and_columns", "patch_rows", "side_by_side"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def patch_rows(pixels: F32, patch: int) -> F32:
    """Return the rows of an image's patches, from left to right and down.

    pixels: [channels, height, width], whole patches. A row has the patch's channels one after the
    other, as a convolution's weights have them: float32 [patches, channels * patch * patch].
    """
    channels, height, width = pixels.shape
    tiled = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    return tiled.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch)


def average_pool(rows: F32, side: int, edge: int) -> F32:
    """Return the means of squares of edge * edge patches of an image of side * side patches."""
    tiled = rows.reshape(side // edge, edge, side // edge, edge, -1)
    total = np.zeros((side // edge, side // edge, rows.shape[1]), np.float32)
    for y in range(edge):
        for x in range(edge):
            total += tiled[:, y, :, x]
    return (total / np.float32(edge * edge)).reshape(-1, rows.shape[1])


def side_by_side(rows: F32, height: int, width: int, edge: int) -> F32:
    """Return squares of edge * edge patches of an image of height * width patches, as rows of all
    their features, line by line: float32 [squares, edge * edge * features]."""
    tiled = rows.reshape(height // edge, edge, width // edge, edge, -1)
    return tiled.transpose(0, 2, 1, 3, 4).reshape(-1, edge * edge * rows.shape[1])


def lines_and_columns(grid: tuple[int, int, int] | None) -> I32:
    """Return 0, the line and the column of each patch, int32 [patches, 3]."""
    assert grid is not None
    _, height, width = grid
    places = np.zeros((height, width, 3), np.int32)
    places[..., 1] = np.arange(height)[:, None]
    places[..., 2] = np.arange(width)
    return places.reshape(-1, 3)
