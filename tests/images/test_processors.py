"""Pixels, grids and texts of images are those of transformers' processors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from image_families import FAMILIES, check, noise

from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError
from sterna.images import ImageProcessor, ProcessedImage

SIZES = [(1, 1), (3, 40), (64, 64), (97, 61), (150, 333)]


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    processor = family.write(tmp_path)
    for height, width in SIZES:
        check(family, processor, noise(height, width))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "PA", "CMYK", "1", "YCbCr", "HSV"])
def test_modes_equal_transformers(mode: str, tmp_path: Path) -> None:
    image = noise(30, 50)
    alpha = noise(30, 50, seed=1).convert("L")
    if mode in ("LA", "RGBA"):
        image = image.convert(mode)
        image.putalpha(alpha)
    elif mode == "PA":
        image = image.convert("P").convert("PA")
        image.putalpha(alpha)
    family = FAMILIES["gemma3"]
    check(family, family.write(tmp_path), image.convert(mode))


def test_a_palette_with_a_transparent_colour_equals_transformers(tmp_path: Path) -> None:
    image = noise(30, 50).convert("P")
    image.info["transparency"] = 7
    family = FAMILIES["gemma3"]
    check(family, family.write(tmp_path), image)


def test_settings_in_one_file(tmp_path: Path) -> None:
    """transformers 5 nests the image processor into processor_config.json."""
    family = FAMILIES["smolvlm"]
    processor = family.write(tmp_path)
    fields = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    nested = {**family.processor, "image_processor": fields}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert ImageProcessor.from_directory(tmp_path) == processor


def test_of_two_files_the_nested_settings_count(tmp_path: Path) -> None:
    """As in transformers 5, whose users save a processor next to a release's older file."""
    family = FAMILIES["gemma3"]
    processor = family.write(tmp_path)
    older = tmp_path / "preprocessor_config.json"
    nested = {**family.processor, "image_processor": json.loads(older.read_text())}
    older.write_text(json.dumps({**nested["image_processor"], "size": {"height": 9, "width": 9}}))
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert ImageProcessor.from_directory(tmp_path) == processor


def test_null_is_the_default(tmp_path: Path) -> None:
    """Published files have null for what they leave to the class."""
    family = FAMILIES["gemma3"]
    processor = family.write(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    names = (
        "resample", "rescale_factor", "image_mean", "image_std", "do_convert_rgb", "do_resize",
        "do_rescale", "do_normalize", "do_pan_and_scan", "image_seq_length", "crop_size",
    )  # fmt: skip
    file.write_text(json.dumps({**json.loads(file.read_text()), **dict.fromkeys(names)}))
    assert ImageProcessor.from_directory(tmp_path) == processor


def test_a_towers_patches_where_the_settings_have_none(tmp_path: Path) -> None:
    """A published processor_config.json of Qwen3.5 has two fields."""
    nested = {"image_processor_type": "Qwen2VLImageProcessor", "size": {"longest_edge": 9999}}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": nested}))
    vision = {"patch_size": 16, "spatial_merge_size": 3, "temporal_patch_size": 4}
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": vision}))
    made = ImageProcessor.from_directory(tmp_path).process([noise(96, 96)])
    assert made[0].pixels.shape == (36, 3 * 4 * 16 * 16)
    assert made[0].tokens == 4


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 84, "crop_size": 84},
            {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 84},
             "crop_size": {"height": 84, "width": 84}},
        ),
        (
            {"image_processor_type": "Gemma3ImageProcessor", "size": 96},
            {"image_processor_type": "Gemma3ImageProcessorFast", "size": {
                "height": 96, "width": 96}},
        ),
        (
            {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 784,
             "max_pixels": 7840},
            {"image_processor_type": "Qwen2VLImageProcessorFast",
             "size": {"shortest_edge": 784, "longest_edge": 7840}},
        ),
        (
            {"image_processor_type": "PixtralImageProcessor", "patch_size": 14},
            {"image_processor_type": "PixtralImageProcessorFast",
             "patch_size": {"height": 14, "width": 14}, "size": {"longest_edge": 1024}},
        ),
    ],
)  # fmt: skip
def test_old_and_new_spellings(fields: object, same: object, tmp_path: Path) -> None:
    made = []
    for given in (fields, same):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
        config = {"vision_config": {"patch_size": 14}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        made.append(ImageProcessor.from_directory(tmp_path))
    assert made[0] == made[1]


def test_tokens_from_config(tmp_path: Path) -> None:
    """Folders without processor_config.json say the same in config.json."""
    family = FAMILIES["smolvlm"]
    processor = family.write(tmp_path)
    (tmp_path / "processor_config.json").unlink()
    config = {"scale_factor": 4, "vision_config": {"image_size": 64, "patch_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ImageProcessor.from_directory(tmp_path) == processor


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gemma3", "size", {"shortest_edge": 5}),
        ("gemma3", "size", {"height": 0, "width": 9}),
        ("gemma3", "size", "large"),
        ("gemma3", "resample", 9),
        ("gemma3", "image_std", [0.5, 0, 0.5]),
        ("gemma3", "image_mean", [0.5, 0.5]),
        ("gemma3", "rescale_factor", -1),
        ("gemma3", "do_resize", False),
        ("gemma4", "pooling_kernel_size", 0),
        ("gemma4", "max_soft_tokens", "many"),
        ("llava", "do_center_crop", 3),
        ("llava", "crop_size", {"height": True, "width": 1}),
        ("smolvlm", "max_image_size", {"longest_edge": 1.5}),
        ("qwen2_vl", "patch_size", -14),
        ("pixtral", "size", {"shortest_edge": 5}),
        ("llava_next", "size", {"shortest_edge": 84}),
        ("llava_next", "crop_size", {"height": 56, "width": 84}),
        ("llava_next", "image_grid_pinpoints", []),
        ("llava_next", "image_grid_pinpoints", [56, 112]),
        ("llava_next", "image_grid_pinpoints", [[56, 100]]),
        ("llava_next", "image_grid_pinpoints", [[56, -56]]),
        ("llava_next", "image_grid_pinpoints", [[56 << 10, 56 << 10]]),
    ],
)
def test_broken_settings_are_named(name: str, field: str, value: object, tmp_path: Path) -> None:
    FAMILIES[name].write(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(ModelFormatError, match="size" if field == "crop_size" else field):
        ImageProcessor.from_directory(tmp_path)


def test_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="preprocessor_config"):
        ImageProcessor.from_directory(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "ViTProcessor"}')
    with pytest.raises(UnsupportedModelError, match=r"one of CLIP.*but got ViTProcessor"):
        ImageProcessor.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "size"), [("llava", (1, 65535)), ("qwen2_vl", (65535, 1)), ("pixtral", (1, 65535))]
)
def test_extreme_ratios_are_refused(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    processor = FAMILIES[name].write(tmp_path)
    with pytest.raises(RequestError, match=r"^image: .*; cut it"):
        processor.process([np.zeros((*size, 3), np.uint8)])


def test_an_extreme_ratio_of_a_fixed_size(tmp_path: Path) -> None:
    """Processors that fit any ratio into their size accept such an image, as transformers does."""
    for name in ("gemma3", "gemma4", "smolvlm", "llava_next"):
        family = FAMILIES[name]
        check(family, family.write(tmp_path / name), noise(1, 65535))


def test_digests_tell_images_apart(tmp_path: Path) -> None:
    processor = FAMILIES["qwen2_vl"].write(tmp_path)
    first, again, other, turned = processor.process(
        [noise(60, 90), noise(60, 90), noise(60, 90, seed=1), noise(60, 90).rotate(90, expand=True)]
    )
    assert first.digest == again.digest
    assert len({first.digest, other.digest, turned.digest}) == 3
    assert len(first.digest) == 32
    same = ProcessedImage(first.pixels, (1, 2, 3), first.tokens)
    assert same.digest != first.digest


def test_expansions_stand_for_placeholders(tmp_path: Path) -> None:
    processor = FAMILIES["gemma3"].write(tmp_path)
    images = processor.process([noise(20, 30), noise(30, 20)])
    text = processor.expansion(images[0])
    mark = processor.placeholder
    assert processor.expand(f"a{mark}b{mark}c", images) == f"a{text}b{text}c"
    for prompt in ("none", f"{mark}", f"{mark}{mark}{mark}"):
        with pytest.raises(RequestError, match=r"once for each of 2 images, but has it \d times"):
            processor.expand(prompt, images)


def test_limits_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = FAMILIES["gemma3"].write(tmp_path)
    with pytest.raises(RequestError, match="at most 64 in a request, but got 65"):
        processor.process([noise(1, 1)] * 65)
    monkeypatch.setattr("sterna.images.image_processor.MAX_PIXELS_TOGETHER", 999)
    with pytest.raises(RequestError, match="at most 999 pixels together"):
        processor.process([noise(10, 50)] * 2)
