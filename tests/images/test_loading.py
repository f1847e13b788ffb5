"""`load_image`: all kinds of sources, and images that mean harm."""

from __future__ import annotations

import base64
import binascii
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_families import noise
from PIL import Image

from sterna.errors import RequestError
from sterna.images import load_image, loading


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, *chunks: tuple[bytes, bytes], data: bytes = b"") -> bytes:
    """A PNG file in grey, written by hand."""
    body = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), *chunks]
    body += [(b"IDAT", data or zlib.compress(b"\0" * (width + 1))), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(value)) + name + value
        + struct.pack(">I", binascii.crc32(name + value))
        for name, value in body
    ]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


IMAGE = noise(12, 20)
PNG = saved(IMAGE, "PNG")


def pixels(source: Any) -> Any:
    image = load_image(source)
    assert image.mode == "RGB"
    return np.asarray(image)


def test_sources(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    text = base64.b64encode(PNG).decode()
    array = np.asarray(IMAGE)
    with open(file, "rb") as opened:
        sources = [
            IMAGE, array, np.moveaxis(array, -1, 0), array / 255, array.astype(np.float32) / 255,
            array.astype(np.uint16) << 8, PNG, bytearray(PNG), memoryview(PNG), file, str(file),
            opened, io.BytesIO(PNG), f"data:image/png;base64,{text}",
            f"DATA:image/png;name=a.png;base64,{text[:20]}\n{text[20:].rstrip('=')}",
            f"data:image/png;base64,{text.replace('+', '%2B').replace('/', '%2F')}",
            Image.open(file),
        ]  # fmt: skip
        for source in sources:
            np.testing.assert_array_equal(pixels(source), array)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats(kind: str, tmp_path: Path) -> None:
    data = saved(IMAGE, kind)
    wrong = tmp_path / "a.txt"  # the content counts, not the name
    wrong.write_bytes(data)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(pixels(data), expected)
    np.testing.assert_array_equal(pixels(wrong), expected)


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "EPS", "TGA", "AVIF"])
def test_other_formats_are_refused(kind: str) -> None:
    """Their decoders are never reached."""
    with pytest.raises(RequestError, match=r"^image: must be PNG, .* but its file begins with"):
        load_image(saved(IMAGE, kind))


def test_grey_arrays() -> None:
    grey = np.asarray(IMAGE.convert("L"))
    expected = np.repeat(grey[..., None], 3, axis=-1)
    for array in (grey, grey[..., None], grey[None], grey / 255):
        np.testing.assert_array_equal(pixels(array), expected)
    np.testing.assert_array_equal(pixels(grey > 99)[..., 0], (grey > 99) * 255)


def test_sixteen_bits_keep_the_upper_byte() -> None:
    """Pillow's conversion clips at 255 and would make this image white."""
    wide = np.arange(600, dtype=np.uint16).reshape(20, 30) * 100
    expected = np.repeat((wide >> 8).astype(np.uint8)[..., None], 3, axis=-1)
    for source in (saved(Image.fromarray(wide), "PNG"), Image.fromarray(wide), wide):
        np.testing.assert_array_equal(pixels(source), expected)


def test_transparency_is_on_white() -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    clear.putpixel((1, 1), (0, 0, 255, 128))
    for kind in ("PNG", "WEBP"):
        found = pixels(saved(clear, kind, lossless=True))
        assert found[0, 0].tolist() == [255, 255, 255]
        assert found[1, 1].tolist() == [127, 127, 255]


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(IMAGE, kind, exif=exif)
    from PIL import ImageOps

    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    np.testing.assert_array_equal(pixels(data), np.asarray(expected))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_data_say_nothing() -> None:
    for exif in (b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0garbage", b"Exif\0\0"):
        data = saved(IMAGE, "JPEG", exif=exif)
        assert pixels(data).shape == (12, 20, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animations_are_their_first_frame(kind: str) -> None:
    first, others = noise(8, 9), [noise(8, 9, seed) for seed in (1, 2)]
    data = saved(first, kind, save_all=True, append_images=others, duration=9, lossless=True)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(pixels(data), expected)
    if kind != "GIF":  # which has a palette
        np.testing.assert_array_equal(pixels(data), np.asarray(first))


def test_colour_profiles_are_ignored() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for kind in ("PNG", "JPEG", "WEBP"):
        with_profile = saved(IMAGE, kind, icc_profile=profile)
        np.testing.assert_array_equal(pixels(with_profile), pixels(saved(IMAGE, kind)))


HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: b"", "its file is empty"),
    "text": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "begins with b.<svg"),
    "html named png": (lambda: b"<!doctype html>", "must be PNG, JPEG, WEBP, GIF, BMP"),
    "signature alone": (lambda: PNG[:8], "this PNG is damaged"),
    "header alone": (lambda: PNG[:40], "must be whole"),
    "bomb": (lambda: png(60_000, 60_000), "at most 67,108,864 pixels"),
    "little bomb": (lambda: png(9_000, 9_000), "pixels, but has 9000 x 9000"),
    "long bomb": (lambda: png(1, 2**31 - 1), "at most 67,108,864 pixels"),
    "no pixel": (lambda: png(0, 5), "image: must"),
    "profile bomb": (
        lambda: png(5, 5, (b"iCCP", b"x\0\0" + zlib.compress(bytes(8 << 20)))),
        "Decompressed data too large",
    ),
    "text bomb": (
        lambda: png(5, 5, (b"zTXt", b"x\0\0" + zlib.compress(bytes(8 << 20)))),
        "Decompressed data too large",
    ),
    "too long": (lambda: PNG + bytes(loading.MAX_BYTES), "at most 64 MiB"),
    "bad base64": (lambda: "data:image/png;base64,***", "valid base64"),
    "data without type": (lambda: "data:,aGk", "must begin with data:image/TYPE;base64"),
    "data of text": (lambda: "data:text/html;base64,aGk=", "must begin with data:image/TYPE"),
    "address": (lambda: "http://127.0.0.1/a.png", "got the address http"),
    "file address": (lambda: "file:///etc/passwd", "got the address file"),
    "number": (lambda: 5, "must be a path, .* but got int"),
    "nothing at all": (lambda: None, "but got NoneType"),
    "text file": (lambda: io.StringIO("x"), "binary mode"),
    "device": (lambda: "/dev/zero", "must be a file"),
    "folder": (lambda: "/", "must be a file"),
    "missing": (lambda: "/nowhere/a.png", "must be a file, but got nothing"),
    "odd array": (lambda: np.zeros((5, 7, 2)), "an array must be"),
    "array of complex": (lambda: np.zeros((3, 5), complex), "an array must be uint8"),
    "array of NaN": (lambda: np.full((3, 5), np.nan), "must lie in 0..1"),
    "bright array": (lambda: np.full((3, 5), 200.0), "must lie in 0..1"),
    "empty array": (lambda: np.zeros((0, 5), np.uint8), "must have a pixel"),
    "huge array": (lambda: np.broadcast_to(np.uint8(0), (10**5, 10**5)), "67,108,864 pixels"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_one_clear_error(name: str) -> None:
    make, message = HOSTILE[name]
    with pytest.raises(RequestError, match=message) as error:
        load_image(make())
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_jpeg_with_scans_without_end() -> None:
    """A scan of a few bytes costs a pass over all pixels."""
    data = saved(Image.new("L", (4000, 4000)), "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    with pytest.raises(RequestError, match="fewer scans"):
        load_image(data[:start] + data[start:-2] * 100 + data[-2:])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_every_truncation_is_an_error(kind: str) -> None:
    data = saved(IMAGE, kind)
    for length in range(0, len(data) - 16, max(1, len(data) // 60)):
        with pytest.raises(RequestError, match=r"^image: "):
            load_image(data[:length])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damaged_bytes_are_an_image_or_an_error(kind: str) -> None:
    data = saved(IMAGE, kind)
    rng = np.random.default_rng(0)
    for _ in range(int(os.environ.get("STERNA_FUZZ", "100"))):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 3):
            damaged[at] = rng.integers(256)
        try:
            assert load_image(bytes(damaged)).mode == "RGB"
        except RequestError:
            continue


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RequestError, match=r"pip install 'sterna\[images\]'"):
        load_image(PNG)
