"""`ImageInput`: images of a conversation become tokens and pixels of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sterna.errors import ContextError, ModelFormatError, RequestError, UnsupportedModelError
from sterna.loading import Model
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.images import ImageProcessor, ProcessedImage, PromptImage

__all__ = ["ImageInput", "PreparedPrompt"]


@dataclass(frozen=True)
class PreparedPrompt:
    """A rendered prompt.

    text: with one placeholder for each image. tokens: with all tokens of images.
    """

    text: str
    tokens: list[int]
    images: tuple[PromptImage, ...] = ()


class ImageInput:
    """Puts images into prompts of a model."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer

    @property
    def sees(self) -> bool:
        """Whether the model takes images."""
        return self._model.tower is not None

    @cached_property
    def processor(self) -> ImageProcessor:
        """The processor of the model's files, which are read at the first image.

        RequestError for a text-only model. Raises as `ImageProcessor.from_directory`.
        """
        config, path = self._model.json, self._model.path
        if not self.sees:
            tower = isinstance(config.get("vision_config"), dict)
            why = "has a vision tower that Sterna does not run" if tower else "reads only text"
            raise RequestError(
                f"image: {self._model.name} {why}; use a model that sees, such as Gemma 3 "
                "(google/gemma-3-4b-it)"
            )
        assert path is not None  # models that see are loaded from files
        from sterna.images import ImageProcessor

        if "preprocessor_config" in config:
            return ImageProcessor.from_config(config, path)
        return ImageProcessor.from_directory(path)

    def prepared(self, text: str, images: Sequence[ProcessedImage] = ()) -> PreparedPrompt:
        """Encode a rendered prompt with its images. ContextError and as `process`."""
        encode = self._tokenizer.encode
        if not images:
            return PreparedPrompt(text, encode(text, add_special=False))
        from sterna.images import PromptImage

        counts = [image.tokens for image in images]
        most = self._model.config.max_position
        if sum(counts) > most:
            raise ContextError(
                f"messages: must fit the context of {most} tokens, but their images have "
                f"{sum(counts)}; make them smaller, or send fewer"
            )
        tokens = encode(self.processor.expand(text, images), add_special=False)
        name = self.processor.image_token
        id = self._tokenizer.token_id(name)
        if id is None:
            raise UnsupportedModelError(
                f"{self._model.name}: the tokenizer must have {name}, which stands for images, but "
                "lacks it; Sterna cannot run this model's images"
            )
        tower = self._model.tower
        if tower is not None and tower.image_token != id:
            raise ModelFormatError(
                file=self._model.path or self._model.name,
                field="the token of images",
                expected=f"{id}, as the tokenizer has {name}",
                got=tower.image_token,
                remedy="config.json does not match the tokenizer: take both from one model",
            )
        positions = np.flatnonzero(np.array(tokens) == id).astype(np.int32)
        if len(positions) != sum(counts):
            raise RequestError(
                f"messages: the text must not have {name}, which stands for an image; remove it"
            )
        pieces = np.split(positions, np.cumsum(counts)[:-1])
        return PreparedPrompt(text, tokens, tuple(map(PromptImage, images, pieces)))

    def process(self, sources: Sequence[Any]) -> list[ProcessedImage]:
        """Process images as `load_image` takes them. RequestError; ModelFormatError if the model's
        settings of images do not fit its tower."""
        images = self.processor.process(sources) if sources else []
        for image in images:
            self._check(image)
        return images

    def _check(self, image: ProcessedImage) -> None:
        """Raise ModelFormatError if the tower takes other shapes or makes other tokens."""
        tower, n = self._model.tower, len(image.pixels)
        assert tower is not None  # there is a processor
        takes = tower.encoder.shape(n, image.grid), tower.tokens(n, image.grid)
        if takes != (image.pixels.shape, image.tokens):
            raise ModelFormatError(
                file=self._model.path or self._model.name,
                field="images",
                expected=f"pixels {list(takes[0])} and {takes[1]} tokens, as the tower has them",
                got=f"{list(image.pixels.shape)} and {image.tokens} by the processor's settings",
                remedy="take preprocessor_config.json, processor_config.json and config.json from "
                "one model",
            )
