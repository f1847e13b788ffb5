"""Processors of images as transformers has them: settings in folders, pixels and texts to compare.

transformers' classes for Pillow are the reference: those for torchvision resize with its filters,
which differ by a level here and there.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

from sterna.images import ImageProcessor, ProcessedImage


def _class(model: str, name: str, kind: str = "image_processing_pil") -> Any:
    return getattr(importlib.import_module(f"transformers.models.{model}.{kind}_{model}"), name)


@dataclass(frozen=True)
class ImageFamily:
    """One kind of transformers.

    model, kind: the module and the class of its image processor. settings: its arguments.
    processor: fields of processor_config.json. text: the class whose `replace_image_token` writes
    an image's text; tokens: attributes that it reads; call: further arguments of a call.
    """

    model: str
    kind: str
    settings: dict[str, Any]
    processor: dict[str, Any]
    text: tuple[str, str] | None = None
    tokens: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> Any:
        return _class(self.model, self.kind)(**self.settings)

    def write(self, folder: Path) -> ImageProcessor:
        """Write the files that transformers saves, and read them."""
        self.reference.save_pretrained(folder)
        (folder / "processor_config.json").write_text(json.dumps(self.processor))
        return ImageProcessor.from_directory(folder)

    def expected(self, image: Image.Image) -> tuple[np.ndarray[Any, Any], list[int] | None, str]:
        """transformers' pixels, grid and text of one image."""
        reference = self.reference
        inputs = reference(image, return_tensors="np", **self.call)
        pixels = np.asarray(inputs["pixel_values"])
        grid = inputs["image_grid_thw"][0].tolist() if "image_grid_thw" in inputs else None
        if self.model in ("smolvlm", "idefics3"):
            pixels = pixels[0]
            grid = [1, inputs["rows"][0][0], inputs["cols"][0][0]]
        elif self.model == "gemma4":
            places = inputs["image_position_ids"][0]
            pixels = pixels[0][places[:, 0] >= 0]
            grid = [1, places[:, 1].max() + 1, places[:, 0].max() + 1]
        elif self.model == "llava_next":
            pixels = pixels[0]
            grid = self._without_padding(image.height, image.width)
        if self.text is None:
            return pixels, grid, _pixtral_text(pixels, SimpleNamespace(**self.processor))
        kind = _class(*self.text, "processing")
        owner = kind.__new__(kind)  # without a tokenizer
        vars(owner).update(
            {"image_seq_length": None, **self.processor, **self.tokens}, image_processor=reference
        )
        return pixels, grid, kind.replace_image_token(owner, inputs, 0)

    def _without_padding(self, height: int, width: int) -> list[int]:
        """Lines of tiles, and rows and columns of patches, as LLaVA-NeXT's model has them."""
        size, tile = (height, width), self.settings["crop_size"]["height"]
        tall, wide = select_best_resolution(size, self.settings["image_grid_pinpoints"])
        patch = self.processor["patch_size"]
        patches = torch.zeros(1, tall // patch, wide // patch)
        return [tall // tile, *unpad_image(patches, size).shape[1:]]


def _pixtral_text(pixels: np.ndarray[Any, Any], owner: SimpleNamespace) -> str:
    """An image's text, without the class, which needs torchvision."""
    edge = owner.patch_size * owner.spatial_merge_size
    rows, columns = pixels.shape[-2] // edge, pixels.shape[-1] // edge
    lines = ["[IMG]" * columns + "[IMG_BREAK]"] * rows
    return "".join(lines).removesuffix("[IMG_BREAK]") + "[IMG_END]"


def _gemma3(tokens: int) -> dict[str, Any]:
    soft = "<image_soft_token>" * tokens
    return {"full_image_sequence": f"\n\n<start_of_image>{soft}<end_of_image>\n\n"}


_GEMMA4 = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"}
_TILE_TOKENS = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "global_image_tag": "<global-img>",
    "global_image_token": "<global-img>",
}
_QWEN = {"image_token": "<|image_pad|>"}

FAMILIES: dict[str, ImageFamily] = {
    "gemma3": ImageFamily(
        "gemma3", "Gemma3ImageProcessorPil", {"size": {"height": 112, "width": 112}},
        {"image_seq_length": 4}, ("gemma3", "Gemma3Processor"), _gemma3(4),
    ),
    "gemma4": ImageFamily(
        "gemma4", "Gemma4ImageProcessorPil", {"max_soft_tokens": 70, "patch_size": 8}, {},
        ("gemma4", "Gemma4Processor"), _GEMMA4,
    ),
    "llava": ImageFamily(
        "clip", "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 84}, "crop_size": {"height": 84, "width": 84}},
        {
            "patch_size": 14, "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
        ("llava", "LlavaProcessor"), {"image_token": "<image>"},
    ),
    "llava_square": ImageFamily(
        "clip", "CLIPImageProcessorPil",
        {"size": {"height": 90, "width": 64}, "crop_size": {"height": 56, "width": 98}},
        {
            "patch_size": 14, "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "full",
        },
        ("llava", "LlavaProcessor"), {"image_token": "<image>"},
    ),
    "llava_siglip": ImageFamily(
        "siglip", "SiglipImageProcessorPil", {"size": {"height": 64, "width": 64}},
        {
            "patch_size": 14, "num_additional_image_tokens": 0,
            "vision_feature_select_strategy": "full",
        },
        ("llava", "LlavaProcessor"), {"image_token": "<image>"},
    ),
    "llava_next": ImageFamily(
        "llava_next", "LlavaNextImageProcessorPil",
        {
            "size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56},
            "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
        },
        {
            "patch_size": 14, "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
        ("llava_next", "LlavaNextProcessor"), {"image_token": "<image>"},
    ),
    "smolvlm": ImageFamily(
        "smolvlm", "SmolVLMImageProcessorPil",
        {"size": {"longest_edge": 256}, "max_image_size": {"longest_edge": 64}},
        {"image_seq_len": 4}, ("smolvlm", "SmolVLMProcessor"), _TILE_TOKENS,
        {"return_row_col_info": True},
    ),
    "idefics3": ImageFamily(
        "idefics3", "Idefics3ImageProcessorPil",
        {
            "size": {"longest_edge": 300}, "max_image_size": {"longest_edge": 120},
            "do_image_splitting": False,
        },
        {"image_seq_len": 3}, ("idefics3", "Idefics3Processor"), _TILE_TOKENS,
        {"return_row_col_info": True},
    ),
    "qwen2_vl": ImageFamily(
        "qwen2_vl", "Qwen2VLImageProcessorPil",
        {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 40}, {},
        ("qwen2_vl", "Qwen2VLProcessor"), _QWEN,
    ),
    "qwen3_vl": ImageFamily(
        "qwen2_vl", "Qwen2VLImageProcessorPil",
        {
            "size": {"shortest_edge": 64 * 64, "longest_edge": 320 * 320}, "patch_size": 16,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        },
        {}, ("qwen2_vl", "Qwen2VLProcessor"), _QWEN,
    ),
    "pixtral": ImageFamily(
        "pixtral", "PixtralImageProcessorPil", {"size": {"longest_edge": 160}},
        {"patch_size": 16, "spatial_merge_size": 1},
        call={"patch_size": {"height": 16, "width": 16}},
    ),
    "mistral3": ImageFamily(
        "pixtral", "PixtralImageProcessorPil", {"size": {"longest_edge": 280}, "patch_size": 14},
        {"patch_size": 14, "spatial_merge_size": 2},
        call={"patch_size": {"height": 28, "width": 28}},
    ),
}  # fmt: skip


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    """An RGB image with edges, gradients and noise."""
    rng = np.random.default_rng([seed, height, width])
    tall, wide = min(height, 1000), min(width, 1000)
    y, x = np.mgrid[:tall, :wide]
    waves = 127 + 127 * np.sin(x[..., None] / (3, 17, 71)) * np.cos(y[..., None] / (11, 5, 37))
    pixels = np.clip(waves + rng.integers(-40, 40, (tall, wide, 3)), 0, 255).astype(np.uint8)
    repeats = (-(-height // tall), -(-width // wide), 1)
    return Image.fromarray(np.ascontiguousarray(np.tile(pixels, repeats)[:height, :width]))


def check(family: ImageFamily, processor: ImageProcessor, image: Image.Image) -> ProcessedImage:
    """Assert that pixels, grid and text are those of transformers."""
    pixels, grid, text = family.expected(image)
    (ours,) = processor.process([image])
    assert ours.pixels.shape == pixels.shape
    assert ours.pixels.dtype == np.float32
    assert ours.pixels.flags.c_contiguous
    np.testing.assert_allclose(ours.pixels, pixels, rtol=0, atol=1e-6)
    if grid is not None:
        assert ours.grid == tuple(grid)
    assert processor.expansion(ours) == text
    assert text.count(processor.image_token) == ours.tokens
    return ours
