"""CLIP, for LLaVA 1.5: the middle square of an image. SigLIP, for other LLaVAs: all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sterna.images.image_processor import ImageProcessor, ProcessedImage
from sterna.images.pixels import as_array, center_crop, shortest_edge
from sterna.images.settings import CLIP, HALF, ImageSettings

__all__ = ["PROCESSOR"]

_BICUBIC = 3
_SIGLIP = "SiglipImageProcessor"


@dataclass(frozen=True, kw_only=True)
class ClipImageProcessor(ImageProcessor):
    """Resizes the shortest edge to `edge`, or the image to `height` x `width`, and crops the
    middle.

    crop: height and width of the middle; None: all.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("CLIPImageProcessor", "LlavaImageProcessor", _SIGLIP)
    placeholder: ClassVar[str] = "<image>"
    image_token: ClassVar[str] = "<image>"

    size: dict[str, int]
    crop: tuple[int, int] | None
    patch: int
    more_tokens: int

    @classmethod
    def from_settings(cls, settings: ImageSettings) -> ClipImageProcessor:
        siglip = settings.kind == _SIGLIP
        square = {"height": 224, "width": 224}
        size = (
            settings.size("size", square, "")
            if siglip
            else settings.size("size", {"shortest_edge": 224}, "shortest_edge")
        )
        if size.keys() not in ({"shortest_edge"}, {"height", "width"}):
            raise settings.wrong("size", "shortest_edge, or height and width", sorted(size))
        if settings.flag("do_pad", False):
            raise settings.wrong("do_pad", "false", True)
        crop = settings.size("crop_size", square, "")
        # CLIP computes a class token, which "default" leaves out.
        more = settings.processor.get("num_additional_image_tokens", int(not siglip))
        if more not in (0, 1):
            raise settings.wrong("num_additional_image_tokens", "0 or 1", more)
        whole = settings.text("vision_feature_select_strategy", "default") == "full"
        return cls(
            **settings.common(_BICUBIC, HALF if siglip else CLIP),
            size=size,
            crop=(crop["height"], crop["width"])
            if settings.flag("do_center_crop", not siglip)
            else None,
            patch=settings.whole("processor.patch_size", "config.vision_config.patch_size"),
            more_tokens=more - (0 if whole else 1),
        )

    def process_one(self, image: Any) -> ProcessedImage:
        edge = self.size.get("shortest_edge")
        height, width = (
            (self.size["height"], self.size["width"])
            if edge is None
            else shortest_edge(image.height, image.width, edge)
        )
        pixels = as_array(self.resized(image, height, width))
        if self.crop is not None:
            pixels = center_crop(pixels, *self.crop)
        rows, columns = pixels.shape[0] // self.patch, pixels.shape[1] // self.patch
        tokens = rows * columns + self.more_tokens
        return ProcessedImage(self.normalized(pixels)[None], None, tokens)

    def expansion(self, image: ProcessedImage) -> str:
        return self.image_token * image.tokens


PROCESSOR = ClipImageProcessor
