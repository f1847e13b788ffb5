"""Gemma 3: images of one size, each in the middle of empty lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import as_array
from sterna.images.settings import HALF, ImageSettings

__all__ = ["PROCESSOR"]

_BILINEAR = 2


@dataclass(frozen=True, kw_only=True)
class Gemma3ImageProcessor(ImageProcessor):
    """Resizes to height x width without keeping the aspect ratio; without pan and scan."""

    KINDS: ClassVar[tuple[str, ...]] = ("Gemma3ImageProcessor",)
    placeholder: ClassVar[str] = "<start_of_image>"
    image_token: ClassVar[str] = "<image_soft_token>"

    height: int
    width: int
    tokens: int

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> Gemma3ImageProcessor:
        size = settings.size("size", {"height": 224, "width": 224}, "")
        if size.keys() != {"height", "width"}:
            raise settings.wrong("size", "height and width", sorted(size))
        tokens = settings.whole(
            "processor.image_seq_length", "config.mm_tokens_per_image", default=256
        )
        return cls(
            **settings.common(_BILINEAR, HALF),
            height=size["height"],
            width=size["width"],
            tokens=tokens,
        )

    def process_one(self, image: Any) -> ProcessedImage:
        pixels = self.normalized(as_array(self.resized(image, self.height, self.width)))
        return ProcessedImage(pixels[None], None, self.tokens)

    def expansion(self, image: ProcessedImage) -> str:
        return f"\n\n{self.placeholder}{self.image_token * image.tokens}<end_of_image>\n\n"


PROCESSOR = Gemma3ImageProcessor
