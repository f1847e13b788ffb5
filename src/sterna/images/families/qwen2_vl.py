"""Qwen2-VL to Qwen3.6: images of any size, cut into patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sterna.errors import RequestError
from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import F32, as_array
from sterna.images.settings import CLIP, ImageSettings

__all__ = ["PROCESSOR"]

_BICUBIC = 3
_MAX_RATIO = 200
_TOWER = "config.vision_config"


@dataclass(frozen=True, kw_only=True)
class Qwen2VLImageProcessor(ImageProcessor):
    """Keeps the aspect ratio within `smallest` to `largest` pixels, in whole merged patches.

    patch: edge of a patch; merge: patches of an edge that become one token; frames: the frames of a
    patch, in which an image is repeated.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("Qwen2VLImageProcessor",)
    placeholder: ClassVar[str] = "<|image_pad|>"
    image_token: ClassVar[str] = "<|image_pad|>"

    smallest: int
    largest: int
    patch: int
    merge: int
    frames: int

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> Qwen2VLImageProcessor:
        size = settings.size("size", {}, "longest_edge")
        # Both fields count pixels, despite their names; min_pixels is the old name.
        smallest = settings.size("min_pixels", {}, "min_pixels") or size
        largest = settings.size("max_pixels", {}, "max_pixels") or size
        return cls(
            **settings.common(_BICUBIC, CLIP),
            smallest=smallest.get("min_pixels") or smallest.get("shortest_edge") or 56 * 56,
            largest=largest.get("max_pixels") or largest.get("longest_edge") or 28 * 28 * 1280,
            patch=settings.whole("image.patch_size", f"{_TOWER}.patch_size", default=14),
            merge=settings.whole("image.merge_size", f"{_TOWER}.spatial_merge_size", default=2),
            frames=settings.whole(
                "image.temporal_patch_size", f"{_TOWER}.temporal_patch_size", default=2
            ),
        )

    def process_one(self, image: Any) -> ProcessedImage:
        height, width = self._smart_size(image.height, image.width)
        pixels = self.normalized(as_array(self.resized(image, height, width)))
        grid = (1, height // self.patch, width // self.patch)
        tokens = grid[1] * grid[2] // self.merge**2
        return ProcessedImage(self._patches(pixels, *grid[1:]), grid, tokens)

    def _smart_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size in whole merged patches that is nearest to the image's."""
        if max(height, width) > _MAX_RATIO * min(height, width):
            raise RequestError(
                f"image: its edges must be within {_MAX_RATIO} times of each other for this "
                f"model, but it has {width} x {height} pixels; cut it"
            )
        edge = self.patch * self.merge
        tall, wide = round(height / edge) * edge, round(width / edge) * edge
        if tall * wide > self.largest:
            scale = math.sqrt(height * width / self.largest)
            tall = max(edge, math.floor(height / scale / edge) * edge)
            wide = max(edge, math.floor(width / scale / edge) * edge)
        elif tall * wide < self.smallest:
            scale = math.sqrt(self.smallest / (height * width))
            tall = math.ceil(height * scale / edge) * edge
            wide = math.ceil(width * scale / edge) * edge
        return tall, wide

    def _patches(self, pixels: F32, rows: int, columns: int) -> F32:
        """Cut float32 [3, height, width] into patches, those of one token next to each other."""
        m, p = self.merge, self.patch
        cut = pixels.reshape(3, rows // m, m, p, columns // m, m, p)
        cut = cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        cut = np.broadcast_to(cut, (*cut.shape[:5], self.frames, p, p))
        return np.ascontiguousarray(cut).reshape(rows * columns, -1)

    def expansion(self, image: ProcessedImage) -> str:
        return self.image_token * image.tokens


PROCESSOR = Qwen2VLImageProcessor
