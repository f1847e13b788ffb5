"""Images of a GGUF file's model: its mmproj file says how they become pixels and tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import seeing_models
from gguf_factory import finish
from image_families import noise
from seeing_models import SEEING
from test_mmproj import FILES, write_text, write_tower

from sterna import loading
from sterna.engine import Engine
from sterna.gguf.file import GgufModel
from sterna.gguf.image_settings import preprocessor_config
from sterna.images import ImageProcessor

gguf = pytest.importorskip("gguf", reason="needs the gguf package")


@pytest.mark.parametrize("name", ["gemma3", "smolvlm", "mistral3"])
def test_rows_of_an_image(name: str, tmp_path: Path) -> None:
    """The tower makes as many rows as the prompt has tokens."""
    projector, arch, token = FILES[name]
    seeing = SEEING[name]
    model = seeing_models.write(tmp_path / "m", seeing)
    write_text(tmp_path / "text.gguf", arch, token, model, seeing)
    write_tower(tmp_path / "mmproj-F32.gguf", projector, model, seeing)
    opened = loading.load(tmp_path / "text.gguf", cached=False)
    processor = ImageProcessor.from_config(opened.json, tmp_path)
    (image,) = processor.process([noise(40, 60)])
    encoder = Engine(opened, threads=1).image_encoder
    assert encoder is not None
    assert len(encoder.rows(image)) == image.tokens


def test_fields_of_a_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "clip")
    writer.add_vision_image_size(768)
    writer.add_vision_patch_size(16)
    writer.add_vision_spatial_merge_size(2)
    writer.add_vision_image_mean([0.5, 0.25, 0.125])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_uint32("clip.vision.image_max_pixels", 1 << 20)
    finish(writer)
    metadata = GgufModel(tmp_path / "a.gguf").metadata
    fields = preprocessor_config(metadata, "qwen3vl_merger")
    processor = ImageProcessor.from_config({"preprocessor_config": fields}, tmp_path)
    assert fields["min_pixels"] == 65536
    (image,) = processor.process([noise(2000, 3000)])
    assert image.grid == (1, 52, 78)
    assert image.tokens == 26 * 39
    assert processor.mean == (0.5, 0.25, 0.125)
