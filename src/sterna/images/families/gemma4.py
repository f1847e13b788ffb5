"""Gemma 4: images of any size, as large as a number of tokens allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sterna.errors import RequestError
from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import F32, as_array
from sterna.images.settings import HALF, ImageSettings

__all__ = ["PROCESSOR"]

_BICUBIC = 3
_TOWER = "config.vision_config"


@dataclass(frozen=True, kw_only=True)
class Gemma4ImageProcessor(ImageProcessor):
    """Resizes images to whole tokens, of `most_tokens` as many as their ratio allows.

    patch: edge of a patch; merge: patches of an edge that become one token.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("Gemma4ImageProcessor",)
    placeholder: ClassVar[str] = "<|image|>"
    image_token: ClassVar[str] = "<|image|>"

    patch: int
    merge: int
    most_tokens: int

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> Gemma4ImageProcessor:
        common = settings.common(_BICUBIC, HALF)
        if not settings.flag("do_normalize", False):
            common |= {"mean": None, "std": None}
        return cls(
            **common,
            patch=settings.whole("image.patch_size", f"{_TOWER}.patch_size", default=16),
            merge=settings.whole(
                "image.pooling_kernel_size", f"{_TOWER}.pooling_kernel_size", default=3
            ),
            most_tokens=settings.whole("image.max_soft_tokens", default=280),
        )

    def process_one(self, image: Any) -> ProcessedImage:
        height, width = self._size(image.height, image.width)
        pixels = self.normalized(as_array(self.resized(image, height, width)))
        grid = (1, height // self.patch, width // self.patch)
        return ProcessedImage(self._patches(pixels), grid, grid[1] * grid[2] // self.merge**2)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size in whole tokens of an image's ratio, or a single line or column."""
        edge = self.patch * self.merge
        scale = math.sqrt(self.most_tokens * self.merge**2 * self.patch**2 / (height * width))
        tall, wide = (math.floor(scale * length / edge) for length in (height, width))
        if tall == 0 and wide > 0:
            tall, wide = 1, min(width // height, self.most_tokens)
        elif wide == 0 and tall > 0:
            tall, wide = min(height // width, self.most_tokens), 1
        if not 1 <= tall * wide <= self.most_tokens:
            raise RequestError(
                f"image: an image of {width} x {height} pixels would become {wide} x {tall} tokens "
                f"for this model, but at most {self.most_tokens} may be; cut it"
            )
        return tall * edge, wide * edge

    def _patches(self, pixels: F32) -> F32:
        """Cut float32 [3, height, width] into patches, line by line; a pixel's channels follow each
        other."""
        _, height, width = pixels.shape
        p = self.patch
        cut = pixels.reshape(3, height // p, p, width // p, p).transpose(1, 3, 2, 4, 0)
        return np.ascontiguousarray(cut).reshape(-1, 3 * p * p)

    def expansion(self, image: ProcessedImage) -> str:
        return f"<|image>{self.image_token * image.tokens}<image|>"


PROCESSOR = Gemma4ImageProcessor
