"""`load_image`: an image in memory, on disk or in a data: URL, as a PIL image in RGB.

Images come from strangers: their size in bytes and pixels is checked before they are decoded, and
only five formats reach a decoder.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt

from sterna.errors import ModelFormatError, RequestError, brief, shown
from sterna.files.reading import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FORMATS", "MAX_BYTES", "MAX_IMAGES", "MAX_PIXELS", "load_image"]

#: The first bytes of files of each format; "?" is any byte.
FORMATS = {
    "PNG": b"\x89PNG\r\n\x1a\n",
    "JPEG": b"\xff\xd8\xff",
    "WEBP": b"RIFF????WEBP",
    "GIF": b"GIF8",
    "BMP": b"BM",
}
MAX_BYTES = 64 << 20  # bytes of a file: a photo of 50 megapixels has 20 MB
MAX_PIXELS = 1 << 26  # 8,192 x 8,192; decoded, 200 MB
MAX_IMAGES = 64  # of a request
# Each scan of a progressive JPEG visits all pixels, and a scan may have only a few bytes.
MAX_SCANNED = 16 * MAX_PIXELS
_DATA_URL = re.compile(r"data:([\w.+/-]*)((?:;[\w.+=-]*)*),", re.IGNORECASE)
_LINE_ENDS = {ord("\r"): None, ord("\n"): None}
_ORIENTATION = 0x0112  # the tag of EXIF
_KINDS = "a path, bytes, a file, a PIL image, a numpy array or a data: URL"


def load_image(source: Any) -> Image:
    """Return an image as a PIL image in RGB, upright as its EXIF orientation says.

    Transparent pixels are blended onto white, 16-bit grey keeps its upper byte, only the first
    frame of an animation is read, and colour profiles are ignored.

    Args:
        source: A path, the bytes of a file, an open binary file, a data: URL, a PIL image, or an
            array [height, width], [height, width, channels] or [channels, height, width] with 1, 3
            or 4 channels: uint8 or uint16, or floats in 0..1.

    RequestError, in one line, for a source that is not an image in `FORMATS`, is damaged, or
    exceeds the limits.
    """
    modes = _pillow()
    if isinstance(source, modes.Image):
        _check_size(*source.size)
        return _decoded(source)
    if isinstance(source, np.ndarray):
        return _decoded(modes.fromarray(_bytes_of_array(source)))
    data = _bytes_of(source)
    what = f"image {brief(source)}" if _is_path(source) else "image"
    return _decoded(_opened(data, what), what)


def _is_path(source: object) -> bool:
    """Whether a source is the name of a file, where `_bytes_of` has taken it."""
    text = isinstance(source, str) and source[:5].lower() != "data:"
    return text or isinstance(source, os.PathLike)


def _pillow() -> Any:
    """Return the module PIL.Image; RequestError without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise RequestError(
            "image: needs Pillow, which is not installed; pip install 'sterna[images]'"
        ) from None
    return Image


def _bytes_of(source: object) -> bytes:
    """Return the bytes of an image's file."""
    if isinstance(source, str) and source[:5].lower() == "data:":
        data = _bytes_of_data_url(source)
    elif isinstance(source, str) and re.match(r"\w+://", source):
        raise RequestError(
            f"image: must be {_KINDS}, but got the address {brief(source)}; download it first"
        )
    elif isinstance(source, (str, os.PathLike)):
        return _bytes_of_file(Path(source))
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    elif callable(read := getattr(source, "read", None)):
        data = read(MAX_BYTES + 1)
        if not isinstance(data, bytes):
            raise RequestError(
                f"image: a file must be open in binary mode, but got {shown(source)}"
            )
    else:
        raise RequestError(f"image: must be {_KINDS}, but got {type(source).__name__}")
    _check_bytes(len(data))
    return data


def _bytes_of_file(path: Path) -> bytes:
    try:
        with open_regular(path) as (descriptor, state):
            _check_bytes(state.nbytes, f"image {brief(path)}")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(MAX_BYTES + 1)
    except ModelFormatError as error:
        got = error.got or "something else"
        raise RequestError(f"image {brief(path)}: must be a file, but got {got}") from None


def _bytes_of_data_url(url: str) -> bytes:
    head = _DATA_URL.match(url[:256])
    if head is None or not head[1].lower().startswith(("image/", "application/octet-stream")):
        raise RequestError(
            f"image: a data: URL must begin with data:image/TYPE;base64, but got {shown(url[:64])}"
        )
    _check_bytes(len(url) * 3 // 4 - 256)  # before the copy
    if not head[2].lower().endswith(";base64"):
        return unquote_to_bytes(url[head.end() :])
    body = "".join(url[head.end() :].split())
    if "%" in body:  # asked first, since a photo has millions of characters
        body = unquote_to_bytes(body).decode("latin-1").translate(_LINE_ENDS)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("image: a data: URL must be valid base64, but got other text") from None


def _check_bytes(n: int, what: str = "image") -> None:
    if n > MAX_BYTES:
        raise RequestError(
            f"{what}: must be at most {MAX_BYTES >> 20} MiB, but has more; make it smaller"
        )


def _check_size(width: int, height: int, what: str = "image") -> None:
    if width < 1 or height < 1:
        raise RequestError(f"{what}: must have a pixel, but has {width} x {height}")
    if width * height > MAX_PIXELS:
        raise RequestError(
            f"{what}: must have at most {MAX_PIXELS:,} pixels, but has {width} x {height}; "
            "make it smaller"
        )


def _begins(data: bytes, start: bytes) -> bool:
    pairs = zip(data, start, strict=False)
    return len(data) >= len(start) and all(b in (a, ord("?")) for a, b in pairs)


def _opened(data: bytes, what: str) -> Image:
    """Read the header of an image's file, and check its format and size."""
    modes = _pillow()
    kind = next((kind for kind, start in FORMATS.items() if _begins(data, start)), None)
    if kind is None:
        raise RequestError(f"{what}: must be {', '.join(FORMATS)}, but {_beginning(data)}")
    try:
        image: Image = modes.open(io.BytesIO(data), formats=(kind,))
    except modes.UnidentifiedImageError:
        raise RequestError(f"{what}: must be whole, but this {kind} is damaged") from None
    except (modes.DecompressionBombError, modes.DecompressionBombWarning):
        raise RequestError(
            f"{what}: must have at most {MAX_PIXELS:,} pixels, but has more; make it smaller"
        ) from None
    except Exception as error:  # decoders raise anything at a damaged header
        raise _damaged(error, what) from None
    _check_size(*image.size, what)
    scans = data.count(b"\xff\xda") if kind == "JPEG" else 1
    if image.width * image.height * scans > MAX_SCANNED:
        raise RequestError(f"{what}: a JPEG must have fewer scans; save it as a baseline JPEG")
    return image


def _beginning(data: bytes) -> str:
    """What a file of no known format is, and what to do about it."""
    if not data:
        return "its file is empty; copy or download it again"
    return f"its file begins with {shown(data[:12])}; convert it"


def _decoded(image: Image, what: str = "image") -> Image:
    """Decode an image's pixels, turn it upright and make it RGB."""
    try:
        image.load()
        return _in_rgb(_upright(image))
    except Exception as error:  # decoders raise anything at damaged pixels
        raise _damaged(error, what) from None


def _damaged(error: Exception, what: str) -> RequestError:
    return RequestError(f"{what}: must be whole, but decoding it failed: {brief(error)}")


def _upright(image: Image) -> Image:
    """Turn an image as its EXIF orientation says; unreadable EXIF data are ignored."""
    turn = _pillow().Transpose
    turns = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }
    try:
        how = turns.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # the picture is readable even if its camera data are damaged
        return image
    return image if how is None else image.transpose(how)


def _in_rgb(image: Image) -> Image:
    modes = _pillow()
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow's own conversion clips at 255, which turns most 16-bit images white.
        upper = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255)
        image = modes.fromarray(upper.astype(np.uint8))
    has_key = image.info.get("transparency") is not None
    if "A" in image.getbands() or "a" in image.getbands() or has_key:
        image = image.convert("RGBA")
        white = modes.new("RGBA", image.size, (255, 255, 255, 255))
        image = modes.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _bytes_of_array(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return an array's pixels as uint8 [height, width] or [height, width, 3 or 4]."""
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)):
        raise RequestError(
            "image: an array must be [height, width] or [height, width, channels] with 1, 3 or 4 "
            f"channels, but got the shape {array.shape}"
        )
    _check_size(array.shape[1], array.shape[0])
    if array.dtype == np.uint16:
        return np.ascontiguousarray(array >> 8, np.uint8)
    if np.issubdtype(array.dtype, np.floating):
        if not (array.min() >= 0 and array.max() <= 1):  # NaN fails, too
            raise RequestError("image: an array of floats must lie in 0..1; divide it by 255")
        array = np.rint(array.astype(np.float64) * 255)
    elif array.dtype not in (np.uint8, np.bool_):
        raise RequestError(
            f"image: an array must be uint8, uint16 or floats in 0..1, but got {array.dtype}"
        )
    elif array.dtype == np.bool_:
        array = array * np.uint8(255)
    return np.ascontiguousarray(array, np.uint8)
