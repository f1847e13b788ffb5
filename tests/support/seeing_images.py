"""Images of noise for `seeing_models`, and the arguments that transformers takes for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

F32 = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, eq=False)
class Image:
    """The output of an image's processor."""

    pixels: F32
    grid: tuple[int, int, int] | None
    tokens: int
    size: tuple[int, int] = (0, 0)  # height and width of its file, for LLaVA 1.6

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(repr(self.grid).encode() + self.pixels.tobytes()).digest()


@dataclass(frozen=True, eq=False)
class PlacedImage:
    """An image at positions of a prompt."""

    image: Image
    positions: Any


def place(prompt: list[int], images: list[Image], token: int) -> list[PlacedImage]:
    """The images at the positions of the image token, in turn."""
    at = np.flatnonzero(np.array(prompt) == token).astype(np.int32)
    ends = np.cumsum([image.tokens for image in images])
    pieces = np.split(at, ends[:-1])
    return [PlacedImage(image, piece) for image, piece in zip(images, pieces, strict=True)]


def tile(edge: int, tokens: int) -> Callable[[np.random.Generator], Image]:
    def make(rng: np.random.Generator) -> Image:
        return Image(rng.standard_normal((1, 3, edge, edge)).astype(np.float32), None, tokens)

    return make


def tiles(edge: int, tokens: int) -> Callable[[np.random.Generator], Image]:
    """Two or three tiles, with their tokens."""

    def make(rng: np.random.Generator) -> Image:
        n = int(rng.integers(2, 4))
        pixels = rng.standard_normal((n, 3, edge, edge)).astype(np.float32)
        return Image(pixels, None, n * tokens)

    return make


def sized(patch: int, merge: int) -> Callable[[np.random.Generator], Image]:
    """Images of several sizes; no run of a line's tokens is longer than the line."""

    def make(rng: np.random.Generator) -> Image:
        height, width = (int(n) * merge for n in rng.integers(2, 5, 2))
        pixels = rng.standard_normal((1, 3, height * patch, width * patch)).astype(np.float32)
        return Image(pixels, (1, height, width), height * width // merge**2)

    return make


def padded(images: list[Image]) -> dict[str, Any]:
    """Images in the upper left of one size."""
    sizes = [image.pixels.shape[2:] for image in images]
    height, width = np.max(sizes, axis=0)
    pixels = np.zeros((len(images), 3, height, width), np.float32)
    for i, image in enumerate(images):
        pixels[i, :, : sizes[i][0], : sizes[i][1]] = image.pixels[0]
    return {"pixel_values": torch.tensor(pixels), "image_sizes": torch.tensor(sizes)}


def patches(merge: int, patch: int = 4) -> Callable[[np.random.Generator], Image]:
    """Images of several sizes, in patches of two frames."""

    def make(rng: np.random.Generator) -> Image:
        height, width = (int(n) * merge for n in rng.integers(1, 5, 2))
        pixels = rng.standard_normal((height * width, 3 * 2 * patch**2)).astype(np.float32)
        return Image(pixels, (1, height, width), height * width // merge**2)

    return make


def placed_patches(rng: np.random.Generator) -> Image:
    """Images of several sizes, in patches of levels between 0 and 1."""
    height, width = (int(n) * 2 for n in rng.integers(1, 6, 2))
    pixels = rng.random((height * width, 3 * 4 * 4)).astype(np.float32)
    return Image(pixels, (1, height, width), height * width // 4)


def with_places(images: list[Image]) -> dict[str, Any]:
    """Patches with columns and lines, filled up with -1."""
    most = max(len(image.pixels) for image in images) + 4
    pixels = np.zeros((len(images), most, images[0].pixels.shape[1]), np.float32)
    places = np.full((len(images), most, 2), -1)
    for i, image in enumerate(images):
        assert image.grid is not None
        pixels[i, : len(image.pixels)] = image.pixels
        lines, columns = np.divmod(np.arange(len(image.pixels)), image.grid[2])
        places[i, : len(image.pixels)] = np.stack([columns, lines], axis=1)
    return {"pixel_values": torch.tensor(pixels), "image_position_ids": torch.tensor(places)}


def with_grids(images: list[Image]) -> dict[str, Any]:
    grids = torch.tensor([image.grid for image in images])
    return {**pixels_of(images), "image_grid_thw": grids}


def batch_of_one(images: list[Image]) -> dict[str, Any]:
    return {name: pixels[None] for name, pixels in pixels_of(images).items()}


def pixels_of(images: list[Image]) -> dict[str, Any]:
    return {"pixel_values": torch.tensor(np.concatenate([image.pixels for image in images]))}


GRIDS = [[28, 56], [56, 28], [56, 56], [84, 28]]


def tiled(rng: np.random.Generator) -> Image:
    """Tiles of an image of any size; transformers says which patches are padding."""
    height, width = (int(n) for n in rng.integers(20, 200, 2))
    tall, wide = select_best_resolution((height, width), GRIDS)
    rows, columns = unpad_image(torch.zeros(1, tall // 7, wide // 7), (height, width)).shape[1:]
    pixels = rng.standard_normal((1 + tall * wide // 28**2, 3, 28, 28)).astype(np.float32)
    return Image(pixels, (tall // 28, rows, columns), 16 + rows * (columns + 1), (height, width))


def filled(images: list[Image]) -> dict[str, Any]:
    """Images of one number of tiles, with zeros behind their own."""
    most = max(len(image.pixels) for image in images)
    pixels = np.zeros((len(images), most, *images[0].pixels.shape[1:]), np.float32)
    for i, image in enumerate(images):
        pixels[i, : len(image.pixels)] = image.pixels
    sizes = torch.tensor([image.size for image in images])
    return {"pixel_values": torch.tensor(pixels), "image_sizes": sizes}
