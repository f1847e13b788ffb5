"""LLaVA 1.6: an image becomes tiles in one of several grids, behind a whole image in a tile's
size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import as_array
from sterna.images.settings import CLIP, ImageSettings

__all__ = ["PROCESSOR"]

_BICUBIC = 3
# transformers' default, in tiles of 336
_GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_DIGITS = 7  # that transformers rounds a length in patches to, before it drops the fraction


@dataclass(frozen=True, kw_only=True)
class LlavaNextImageProcessor(ImageProcessor):
    """Fits images into the middle of the grid that keeps most of their pixels, and cuts tiles.

    tile: edge of a tile; side: patches of that edge; grids: height and width of each, in pixels.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("LlavaNextImageProcessor",)
    placeholder: ClassVar[str] = "<image>"
    image_token: ClassVar[str] = "<image>"

    tile: int
    side: int
    grids: tuple[tuple[int, int], ...]

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> LlavaNextImageProcessor:
        crop = settings.size("crop_size", {"height": 224, "width": 224}, "")
        tile = crop["height"]
        size = settings.size("size", {"shortest_edge": 224}, "shortest_edge")
        if {*size.values(), *crop.values()} != {tile}:
            raise settings.wrong("size", f"{tile}, as crop_size", sorted(size.values()))
        patch = settings.whole("processor.patch_size", "config.vision_config.patch_size")
        return cls(
            **settings.common(_BICUBIC, CLIP),
            tile=tile,
            side=tile // patch,
            grids=tuple(settings.grids("image_grid_pinpoints", _GRIDS, tile)),
        )

    def process_one(self, image: Any) -> ProcessedImage:
        grid = self._best_grid(image.height, image.width)
        tiles = [self.resized(image, self.tile, self.tile), *self._cut(self._fitted(image, *grid))]
        pixels = np.stack([self.normalized(as_array(tile)) for tile in tiles])
        rows, columns = self._patches(image, *grid)
        tokens = self.side**2 + rows * (columns + 1)  # a line of patches ends with a row of its own
        return ProcessedImage(pixels, (grid[0] // self.tile, rows, columns), tokens)

    def _best_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid in which an image has most pixels, and of equal ones the smallest."""

        def kept(grid: tuple[int, int]) -> tuple[int, int]:
            scale = min(grid[1] / width, grid[0] / height)
            pixels = min(int(width * scale) * int(height * scale), width * height)
            return pixels, pixels - grid[0] * grid[1]

        return max(self.grids, key=kept)

    def _fitted(self, image: Any, tall: int, wide: int) -> Any:
        """Resize an image to a grid, with black pixels around it."""
        across, down = wide / image.width, tall / image.height
        height = min(math.ceil(image.height * across), tall) if across < down else tall
        width = wide if across < down else min(math.ceil(image.width * down), wide)
        canvas = np.zeros((tall, wide, 3), np.uint8)
        top, left = (tall - height) // 2, (wide - width) // 2
        fitted = as_array(self.resized(image, height, width))
        canvas[top : top + height, left : left + width] = fitted
        return canvas

    def _cut(self, canvas: Any) -> list[Any]:
        edge = self.tile
        return [
            canvas[y : y + edge, x : x + edge]
            for y in range(0, canvas.shape[0], edge)
            for x in range(0, canvas.shape[1], edge)
        ]

    def _patches(self, image: Any, tall: int, wide: int) -> tuple[int, int]:
        """Return the rows and columns of a grid's patches without those of the black pixels."""
        rows, columns = tall // self.tile * self.side, wide // self.tile * self.side
        if image.width / image.height > columns / rows:
            unpadded = int(round(image.height * (columns / image.width), _DIGITS))
            return rows - (rows - unpadded) // 2 * 2, columns
        unpadded = int(round(image.width * (rows / image.height), _DIGITS))
        return rows, columns - (columns - unpadded) // 2 * 2

    def expansion(self, image: ProcessedImage) -> str:
        return self.image_token * image.tokens


PROCESSOR = LlavaNextImageProcessor
