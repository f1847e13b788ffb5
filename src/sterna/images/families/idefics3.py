"""Idefics 3 and SmolVLM: an image becomes tiles of one size, and a whole image in that size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import as_array
from sterna.images.settings import HALF, ImageSettings

__all__ = ["PROCESSOR"]

_LANCZOS = 1
_LARGEST = 4096  # transformers' limit of the longest edge


@dataclass(frozen=True, kw_only=True)
class Idefics3ImageProcessor(ImageProcessor):
    """Resizes the longest edge to `longest`, then both up to multiples of `tile`, and cuts tiles.

    splits: whether images are cut into tiles, or only resized to one. tile_tokens: the number of
    embeddings that the tower makes of a tile.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
    placeholder: ClassVar[str] = "<image>"
    image_token: ClassVar[str] = "<image>"

    longest: int
    tile: int
    splits: bool
    tile_tokens: int

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> Idefics3ImageProcessor:
        size = settings.size("size", {"longest_edge": 4 * 364}, "longest_edge")
        tile = settings.size("max_image_size", {"longest_edge": 364}, "longest_edge")
        if size.keys() != {"longest_edge"} or tile.keys() != {"longest_edge"}:
            raise settings.wrong("size", "longest_edge", sorted({*size, *tile}))
        edge = tile["longest_edge"]
        return cls(
            **settings.common(_LANCZOS, HALF),
            longest=size["longest_edge"],
            tile=edge,
            splits=settings.flag("do_image_splitting", True),
            tile_tokens=_tile_tokens(settings),
        )

    def process_one(self, image: Any) -> ProcessedImage:
        image = self.resized(image, *self._within_longest(image.height, image.width))
        rows = columns = 0
        tiles = []
        if self.splits:
            height, width = self._in_tiles(image.height, image.width)
            image = self.resized(image, height, width)
            if max(height, width) > self.tile:
                rows, columns = height // self.tile, width // self.tile
                tiles = self._cut(as_array(image), rows, columns)
        tiles.append(as_array(self.resized(image, self.tile, self.tile)))
        pixels = np.stack([self.normalized(tile) for tile in tiles])
        return ProcessedImage(pixels, (1, rows, columns), len(tiles) * self.tile_tokens)

    def _cut(self, pixels: Any, rows: int, columns: int) -> list[Any]:
        edge = self.tile
        return [
            pixels[row * edge : (row + 1) * edge, column * edge : (column + 1) * edge]
            for row in range(rows)
            for column in range(columns)
        ]

    def _within_longest(self, height: int, width: int) -> tuple[int, int]:
        """Return a size whose longest edge is `longest`, with an even other edge."""
        ratio = width / height
        if width >= height:
            height, width = int(self.longest / ratio), self.longest
            height = max(height + height % 2, 1)
        else:
            height, width = self.longest, int(self.longest * ratio)
            width = max(width + width % 2, 1)
        if max(height, width) <= _LARGEST:
            return height, width
        ratio = width / height
        if width >= height:
            return max(int(_LARGEST / ratio), 1), _LARGEST
        return _LARGEST, max(int(_LARGEST * ratio), 1)

    def _in_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return the next larger size whose edges are multiples of the tile's."""

        def up(edge: int) -> int:
            return math.ceil(edge / self.tile) * self.tile

        ratio = width / height
        if width >= height:
            width = up(width)
            return up(int(width / ratio)), width
        height = up(height)
        return height, up(int(height * ratio))

    def expansion(self, image: ProcessedImage) -> str:
        border, row = "<fake_token_around_image>", self.image_token * self.tile_tokens
        whole = f"{border}<global-img>{row}{border}"
        _, rows, columns = image.grid or (1, 0, 0)
        if not rows:
            return whole
        lines = [
            "".join(f"{border}<row_{y + 1}_col_{x + 1}>{row}" for x in range(columns)) + "\n"
            for y in range(rows)
        ]
        return "".join([*lines, "\n", whole])


def _tile_tokens(settings: ImageSettings) -> int:
    """Return the number of embeddings that the tower makes of a tile."""
    if "image_seq_len" in settings.processor or "scale_factor" not in settings.config:
        return settings.whole("processor.image_seq_len", default=169)
    side, patch, factor = (
        settings.whole(f"config.{name}")
        for name in ("vision_config.image_size", "vision_config.patch_size", "scale_factor")
    )
    return (side // patch // factor) ** 2


PROCESSOR = Idefics3ImageProcessor
