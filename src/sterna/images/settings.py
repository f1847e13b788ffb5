"""`ImageSettings`: the image settings of a checkpoint's files, in old and new spellings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.errors import ModelFormatError
from sterna.files.jsonfile import load_settings
from sterna.images.loading import MAX_PIXELS

__all__ = ["CLIP", "HALF", "ImageSettings"]

#: Mean and standard deviation of the channels, of OpenAI's CLIP and of SigLIP.
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

_MAX_EDGE = 1 << 16
_MAX_AREA = 1 << 32


@dataclass(frozen=True)
class ImageSettings:
    """Fields of a checkpoint's files.

    file: named in errors. image: fields of the image processor. processor: fields of the processor
    that joins images and text. config: config.json.
    """

    file: Path
    image: Mapping[str, Any]
    processor: Mapping[str, Any]
    config: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> ImageSettings:
        """Read a folder; ModelFormatError if it has no image settings.

        transformers 5 writes the image processor into processor_config.json, earlier versions into
        preprocessor_config.json. Of both, the first one counts, as there.
        """
        processor = load_settings(folder / "processor_config.json")
        file = folder / "preprocessor_config.json"
        image = load_settings(file)
        nested = processor.get("image_processor")
        if isinstance(nested, dict) and nested:
            image, file = nested, folder / "processor_config.json"
        if not image:
            rule, remedy = "the settings of images", "download it from the model's repository"
            raise ModelFormatError(file, expected=rule, got="no file of this name", remedy=remedy)
        return cls(file, image, processor, load_settings(folder / "config.json"))

    @property
    def kind(self) -> str:
        """The name of transformers' class, without Fast or Pil at its end."""
        kind = self.image.get("image_processor_type") or self.image.get("feature_extractor_type")
        if not isinstance(kind, str):
            raise self.wrong("image_processor_type", "the name of a class", kind)
        kind = kind.removesuffix("Fast").removesuffix("Pil")
        return kind.replace("FeatureExtractor", "ImageProcessor")

    def common(
        self, resample: int, channels: tuple[tuple[float, ...], tuple[float, ...]]
    ) -> dict[str, Any]:
        """Return the arguments of every `ImageProcessor`. resample, channels: the defaults."""
        for name in ("do_resize", "do_convert_rgb"):
            if self.image.get(name, True) is False:
                raise self.wrong(name, "true", False)
        normalize = self.image.get("do_normalize", True) is not False
        rescale = self.image.get("do_rescale", True) is not False
        return {
            "resample": self._filter(resample),
            "rescale": self._number("rescale_factor", 1 / 255) if rescale else None,
            "mean": self._channels("image_mean", channels[0]) if normalize else None,
            "std": self._channels("image_std", channels[1]) if normalize else None,
        }

    def flag(self, name: str, default: bool) -> bool:
        """Return a flag of the image processor; null means the default."""
        value = self.image.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def size(self, name: str, default: Mapping[str, int], whole: str) -> dict[str, int]:
        """Return a size by edge. whole: the edge that a plain number sets; "" for a square."""
        value = self.image.get(name)
        if value is None:
            return dict(default)
        if isinstance(value, int) and not isinstance(value, bool):
            value = {whole: value} if whole else {"height": value, "width": value}
        if not isinstance(value, dict):
            raise self.wrong(name, "a size", value)
        lengths = {edge: length for edge, length in value.items() if length is not None}
        return {edge: self._whole(f"{name}.{edge}", lengths[edge], _MAX_AREA) for edge in lengths}

    def grids(self, name: str, default: list[list[int]], tile: int) -> list[tuple[int, int]]:
        """Return heights and widths of canvases of whole tiles, whose edge is `tile`."""
        value = self.image.get(name, self.config.get(name))
        values = default if value is None else value
        if not isinstance(values, list) or not values:
            raise self.wrong(name, "a list of sizes", values)
        pairs = []
        for one in values:
            if not isinstance(one, (list, tuple)) or len(one) != 2:
                raise self.wrong(name, "a height and a width each", one)
            height, width = (self._whole(name, edge, _MAX_EDGE) for edge in one)
            if height % tile or width % tile or height * width > MAX_PIXELS:
                raise self.wrong(name, f"multiples of {tile} with at most {MAX_PIXELS} pixels", one)
            pairs.append((height, width))
        return pairs

    def whole(self, *names: str, default: int | None = None) -> int:
        """Return the first of these fields that is present, a positive whole number.

        names: dotted paths that begin with image, processor or config.
        """
        for name in names:
            value: Any = vars(self)
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, dict):  # {"height": 14, "width": 14}
                value = value.get("height")
            if value is not None:
                return self._whole(name, value, _MAX_EDGE)
        if default is None:
            raise self.wrong(names[0], "a number", None)
        return default

    def text(self, name: str, default: str) -> str:
        """Return a text of the processor or config.json."""
        for fields in (self.processor, self.config):
            if isinstance(value := fields.get(name), str):
                return value
        return default

    def wrong(self, name: str, expected: str, got: object) -> ModelFormatError:
        """The error for a field that breaks a rule."""
        value = "null" if got is None else got
        return ModelFormatError(self.file, name, expected, value)

    def _whole(self, name: str, value: object, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
            raise self.wrong(name, f"a whole number in 1..{high}", value)
        return value

    def _filter(self, default: int) -> int:
        value = self.image.get("resample")
        value = default if value is None else value
        if value not in (0, 1, 2, 3, 4, 5) or isinstance(value, bool):
            raise self.wrong("resample", "a filter of Pillow, 0..5", value)
        return int(value)

    def _number(self, name: str, default: float) -> float:
        value = self.image.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e6:
            raise self.wrong(name, "a positive number", value)
        return float(value)

    def _channels(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self.image.get(name)
        if value is None:
            return default
        values = value if isinstance(value, list) else [value] * 3
        for one in values:
            if not isinstance(one, (int, float)) or not math.isfinite(one) or abs(one) > 1e6:
                raise self.wrong(name, "a number for each of three channels", value)
        if len(values) != 3 or (name == "image_std" and 0 in values):
            raise self.wrong(name, "a number for each of three channels", value)
        return tuple(float(one) for one in values)
