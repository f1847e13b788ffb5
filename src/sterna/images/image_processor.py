"""`ImageProcessor`: turns images into the input of a tower, and into tokens of a prompt."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError, UnsupportedModelError, brief
from sterna.images.loading import MAX_IMAGES, MAX_PIXELS, load_image
from sterna.images.pixels import F32, U8, level_table, levels, resize
from sterna.images.settings import ImageSettings

__all__ = ["ImageProcessor", "ProcessedImage", "PromptImage"]

#: Pixels of all images of a request, so that many large ones cannot take minutes to decode.
MAX_PIXELS_TOGETHER = 4 * MAX_PIXELS


@dataclass(frozen=True, eq=False)
class ProcessedImage:
    """An image as the input of a tower.

    Attributes:
        pixels: float32 [tiles, channels, height, width], or [patches, channels * frames * height *
            width] where the tower takes patches (Qwen).
        grid: Frames, rows and columns of patches or tiles; None if all images have the same.
        tokens: Number of embeddings that the tower makes, and of image tokens in the prompt.
    """

    pixels: F32
    grid: tuple[int, int, int] | None
    tokens: int

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the pixels, their shape and the grid; equal images have equal digests."""
        sha256 = hashlib.sha256(repr((self.pixels.shape, self.grid)).encode())
        sha256.update(np.ascontiguousarray(self.pixels, "<f4").data)
        return sha256.digest()


@dataclass(frozen=True, eq=False)
class PromptImage:
    """An image of a prompt.

    positions: int32 [image.tokens], the positions of its tokens in the prompt, ascending.
    """

    image: ProcessedImage
    positions: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class ImageProcessor(ABC):
    """Computes pixels and tokens of images, equal to those of transformers' processor.

    `from_directory` makes the processor of a checkpoint.

    Attributes:
        resample: The filter, as a number of Pillow's.
        rescale, mean, std: Scale and normalise levels 0..255 for the tower; None leaves a step out.
    """

    #: Names of transformers' classes, without Fast or Pil at their end.
    KINDS: ClassVar[tuple[str, ...]] = ()
    #: The text that a chat template writes for an image.
    placeholder: ClassVar[str]
    #: The token whose positions get the tower's embeddings.
    image_token: ClassVar[str]

    resample: int
    rescale: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    @classmethod
    def from_directory(cls, path: str | Path) -> ImageProcessor:
        """Make the processor that a checkpoint's folder describes.

        Reads preprocessor_config.json, processor_config.json and config.json, as transformers
        saves them. UnsupportedModelError for a kind that Sterna does not know, ModelFormatError
        for files that break a rule.
        """
        return cls._of_kind(ImageSettings.load(Path(path)))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], file: str | Path) -> ImageProcessor:
        """Make the processor of a config.json that has the fields of preprocessor_config.json.

        The config.json of a GGUF file's model has them. file: named in errors. Raises as
        `from_directory`.
        """
        fields = config.get("preprocessor_config") or {}
        return cls._of_kind(ImageSettings(Path(file), fields, {}, config))

    @classmethod
    def _of_kind(cls, settings: ImageSettings) -> ImageProcessor:
        for family in _families():
            if settings.kind in family.KINDS:
                return family.from_settings(settings)
        known = sorted(kind for family in _families() for kind in family.KINDS)
        raise UnsupportedModelError(
            f"{settings.file}: the images' processor must be one of {', '.join(known)}, but got "
            f"{brief(settings.kind)}; Sterna does not run this model's images yet"
        )

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: ImageSettings) -> ImageProcessor:
        """Make the processor of this kind; ModelFormatError for settings that break a rule."""

    def process(self, images: Iterable[Any]) -> list[ProcessedImage]:
        """Process images, each as `load_image` takes it. RequestError."""
        return list(self._processed(list(images)))

    def _processed(self, sources: Sequence[Any]) -> Iterator[ProcessedImage]:
        if len(sources) > MAX_IMAGES:
            raise RequestError(
                f"images: must be at most {MAX_IMAGES} in a request, but got {len(sources)}"
            )
        left = MAX_PIXELS_TOGETHER
        for source in sources:
            image = load_image(source)
            left -= image.width * image.height
            if left < 0:
                raise RequestError(
                    f"images: must have at most {MAX_PIXELS_TOGETHER:,} pixels together; "
                    "make them smaller"
                )
            yield self.process_one(image)

    @abstractmethod
    def process_one(self, image: Any) -> ProcessedImage:
        """Process one PIL image in RGB."""

    @abstractmethod
    def expansion(self, image: ProcessedImage) -> str:
        """Return the text of an image in a prompt: `image.tokens` image tokens, with markers."""

    def expand(self, prompt: str, images: Sequence[ProcessedImage]) -> str:
        """Replace each placeholder of a rendered prompt with the text of its image.

        RequestError unless there is a placeholder for each image.
        """
        first, *others = prompt.split(self.placeholder)
        if len(others) != len(images):
            raise RequestError(
                f"messages: the prompt must have {self.placeholder} once for each of "
                f"{len(images)} images, but has it {len(others)} times; remove it from the text"
            )
        pieces = [first]
        for image, text in zip(images, others, strict=True):
            pieces += [self.expansion(image), text]
        return "".join(pieces)

    @cached_property
    def _table(self) -> F32:
        return level_table(self.rescale, self.mean, self.std)

    def resized(self, image: Any, height: int, width: int) -> Any:
        """Resize a PIL image with the checkpoint's filter."""
        return resize(image, height, width, self.resample)

    def normalized(self, image: U8) -> F32:
        """Normalise uint8 [height, width, 3] to float32 [3, height, width]."""
        return levels(image, self._table)


def _families() -> list[type[ImageProcessor]]:
    """List the classes of `families`, whose modules are discovered."""
    from sterna.images import families

    processors = []
    for info in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{info.name}")
        processors.append(module.PROCESSOR)
    return processors
