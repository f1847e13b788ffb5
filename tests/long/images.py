"""Pixels, grids and texts of 300 sizes, 1 x 1 to 8000 x 8000, in the modes that files have.

The settings are those of published models: tests/images has small ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_families import FAMILIES, ImageFamily, check, noise
from PIL import Image

_QWEN = {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}

#: Models as published: Gemma 3 and 4, LLaVA 1.5 and 1.6, SmolVLM 2 and Idefics 3, Qwen2-VL,
#: Qwen3-VL, Pixtral, Mistral 3.
PUBLISHED = {
    "gemma3": ({"size": {"height": 896, "width": 896}}, {"image_seq_length": 4}),
    "gemma4": ({}, {}),
    "llava": (
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        FAMILIES["llava"].processor,
    ),
    "llava_next": (
        {
            "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336},
            "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
        },
        FAMILIES["llava_next"].processor,
    ),
    "smolvlm": (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"image_seq_len": 4},
    ),
    "idefics3": (
        {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 364}},
        {"image_seq_len": 4},
    ),
    "qwen2_vl": ({"min_pixels": 3136, "max_pixels": 12845056}, {}),
    "qwen3_vl": ({"size": {"shortest_edge": 65536, "longest_edge": 16777216}, **_QWEN}, {}),
    "pixtral": ({"size": {"longest_edge": 1024}}, FAMILIES["pixtral"].processor),
    "mistral3": (
        {"size": {"longest_edge": 1540}, "patch_size": 14},
        FAMILIES["mistral3"].processor,
    ),
}
MODES = ("L", "LA", "RGB", "RGBA", "P", "CMYK")


def published(name: str) -> ImageFamily:
    family = FAMILIES[name]
    settings, processor = PUBLISHED[name]
    return ImageFamily(
        family.model, family.kind, settings, processor, family.text, family.tokens, family.call
    )


def sizes() -> list[tuple[int, int]]:
    """300 sizes: corners, multiples of patches and their neighbours, and lengths at random."""
    rng = np.random.default_rng(49)
    found = [(1, 1), (1, 200), (200, 1), (8000, 8000), (40, 8000), (8000, 40)]
    for edge in (14, 16, 28, 32, 336, 364, 512, 896, 1024, 1540, 2048):
        found += [(edge + more, edge - less) for more in (-1, 0, 1) for less in (-1, 0, 1)]
    while len(found) < 300:
        height, width = np.exp(rng.uniform(0, np.log(2500), 2)).astype(int)
        if max(height, width) <= 200 * min(height, width):
            found.append((int(height), int(width)))
    return found


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    image = image.convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_modes(name: str, tmp_path: Path) -> None:
    family = published(name)
    processor = family.write(tmp_path)
    assert len(sizes()) == 300
    for i, (height, width) in enumerate(sizes()):
        check(family, processor, in_mode(noise(height, width), MODES[i % len(MODES)]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_each_mode(name: str, mode: str, tmp_path: Path) -> None:
    family = published(name)
    check(family, family.write(tmp_path), in_mode(noise(321, 234), mode))


def test_sixteen_bits(tmp_path: Path) -> None:
    """As transformers does with the upper bytes; with 16 bits it clips at 255."""
    family = published("gemma3")
    processor = family.write(tmp_path)
    wide = np.random.default_rng(0).integers(0, 1 << 16, (300, 200), dtype=np.uint16)
    (ours,) = processor.process([Image.fromarray(wide)])
    pixels, _, _ = family.expected(Image.fromarray((wide >> 8).astype(np.uint8)))
    np.testing.assert_allclose(ours.pixels, pixels, rtol=0, atol=1e-6)
