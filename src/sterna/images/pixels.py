"""Resizing, cutting and normalising, with the results of transformers' processors for Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.images.loading import MAX_PIXELS

__all__ = [
    "F32",
    "U8",
    "as_array",
    "center_crop",
    "level_table",
    "levels",
    "resize",
    "shortest_edge",
]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def as_array(image: Any) -> U8:
    """Return a PIL image in RGB as uint8 [height, width, 3]."""
    return np.asarray(image, np.uint8)


def resize(image: Any, height: int, width: int, resample: int) -> Any:
    """Resize a PIL image; resample: the filter, as a number of Pillow's.

    RequestError for a result without pixels or with too many: models that keep the aspect ratio
    would make an image of 1 x 65,535 pixels gigantic.
    """
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise RequestError(
            f"image: an image of {image.width} x {image.height} pixels would become "
            f"{width} x {height} for this model; cut it to a less extreme aspect ratio"
        )
    return image.resize((width, height), resample=resample)


def shortest_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return height and width of an image whose shorter edge becomes `edge`, rounded down."""
    long = int(edge * max(height, width) / min(height, width))
    return (long, edge) if width <= height else (edge, long)


def center_crop(image: U8, height: int, width: int) -> U8:
    """Cut uint8 [height, width, 3] out of the middle of an image; missing pixels are black."""
    tall, wide = image.shape[:2]
    top, left = (tall - height) // 2, (wide - width) // 2
    if top >= 0 and left >= 0:
        return image[top : top + height, left : left + width]
    # An image that is too small in one direction is first padded on all sides.
    canvas = np.zeros((max(height, tall), max(width, wide), image.shape[2]), np.uint8)
    above, before = -((tall - canvas.shape[0]) // 2), -((wide - canvas.shape[1]) // 2)
    canvas[above : above + tall, before : before + wide] = image
    top, left = top + above, left + before
    return canvas[max(0, top) : top + height, max(0, left) : left + width]


def level_table(
    rescale: float | None, mean: Sequence[float] | None, std: Sequence[float] | None
) -> F32:
    """Return the value of each level of each channel, float32 [3, 256].

    Levels are scaled in float64 and normalised in float32, as transformers does for each pixel.
    rescale: None keeps levels in 0..255. mean, std: None skips the normalisation.
    """
    values = np.arange(256, dtype=np.float64)
    table = np.tile((values if rescale is None else values * rescale).astype(np.float32), (3, 1))
    if mean is not None and std is not None:
        table = (table - np.array(mean, np.float32)[:, None]) / np.array(std, np.float32)[:, None]
    return table


def levels(image: U8, table: F32) -> F32:
    """Normalise uint8 [height, width, 3] to float32 [3, height, width] by a `level_table`."""
    return np.stack([table[c][image[:, :, c]] for c in range(3)])
