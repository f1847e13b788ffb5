"""Pixtral and Mistral 3: images of any size, whose rows end with a token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import as_array
from sterna.images.settings import CLIP, ImageSettings

__all__ = ["PROCESSOR"]

_BICUBIC = 3


@dataclass(frozen=True, kw_only=True)
class PixtralImageProcessor(ImageProcessor):
    """Shrinks images to fit into `height` x `width`, in whole merged patches.

    patch: edge of a patch; merge: patches of an edge that become one token.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("PixtralImageProcessor",)
    placeholder: ClassVar[str] = "[IMG]"
    image_token: ClassVar[str] = "[IMG]"

    height: int
    width: int
    patch: int
    merge: int

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> PixtralImageProcessor:
        size = settings.size("size", {"longest_edge": 1024}, "")
        edge = size.get("longest_edge")
        if edge is None and size.keys() != {"height", "width"}:
            raise settings.wrong("size", "longest_edge, or height and width", sorted(size))
        return cls(
            **settings.common(_BICUBIC, CLIP),
            height=edge or size["height"],
            width=edge or size["width"],
            patch=settings.whole(
                "processor.patch_size",
                "config.vision_config.patch_size",
                "image.patch_size",
                default=16,
            ),
            merge=settings.whole(
                "processor.spatial_merge_size", "config.spatial_merge_size", default=1
            ),
        )

    def process_one(self, image: Any) -> ProcessedImage:
        height, width = image.height, image.width
        scale = max(height / self.height, width / self.width)
        if scale > 1:
            height, width = math.floor(height / scale), math.floor(width / scale)
        unit = self.patch * self.merge
        height, width = math.ceil(height / unit) * unit, math.ceil(width / unit) * unit
        pixels = self.normalized(as_array(self.resized(image, height, width)))
        grid = (1, height // self.patch, width // self.patch)
        return ProcessedImage(pixels[None], grid, grid[1] * grid[2] // self.merge**2)

    def expansion(self, image: ProcessedImage) -> str:
        assert image.grid is not None
        rows, columns = image.grid[1] // self.merge, image.grid[2] // self.merge
        return "[IMG_BREAK]".join([self.image_token * columns] * rows) + "[IMG_END]"


PROCESSOR = PixtralImageProcessor
