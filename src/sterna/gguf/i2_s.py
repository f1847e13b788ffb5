"""I2_S tensors of BitNet models: two-bit codes, packed in one of three ways; no key says which."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.checks import checked_name
from sterna.errors import ModelFormatError, NonFiniteError, warn

if TYPE_CHECKING:
    from sterna.gguf.file import GgufModel

__all__ = ["I2S_LAYOUTS", "i2s_layout", "i2s_levels", "warn_of_i2s"]

#: How I2_S packs four codes into a byte: runs of 128 weights (microsoft/BitNet on x86, and all
#: official files), of 64 (made on ARM), or columns of four rows ("rows", its 2026 default on x86).
I2S_LAYOUTS = ("128", "64", "rows")


def i2s_layout(asked: str | None = None) -> str | None:
    """Return the layout of I2_S tensors: as asked, else from STERNA_I2S, else None.

    RequestError for an unknown layout.
    """
    source = "STERNA_I2S" if asked is None else "i2s"
    layout = (os.environ.get("STERNA_I2S") or None) if asked is None else asked
    return None if layout is None else checked_name(source, layout, I2S_LAYOUTS)


def warn_of_i2s(model: GgufModel, layout: str | None) -> None:
    """Warn that the layout is a guess if there are I2_S tensors and no layout was chosen."""
    if layout is None and any(info.dtype == "I2_S" for info in model.tensors.values()):
        warn(
            f"{model.path}: I2_S tensors are read as packed on x86 in runs of 128 weights, as "
            "official files are; if the model answers nonsense, try --i2s 64 (made on ARM) or "
            "--i2s rows, or set STERNA_I2S"
        )


def i2s_levels(
    model: GgufModel, info: TensorInfo, layout: str, threads: int
) -> tuple[npt.NDArray[np.int8], np.float32]:
    """Read the levels int8 [M, K], in the file's order, and the scale of a tensor.

    layout: one of I2S_LAYOUTS. ModelFormatError or NonFiniteError for a damaged tensor.
    """
    M, K = info.shape
    raw = model.read(info.name)
    scale = raw[M * K // 4 :][:4].view("<f4")[0]
    if not np.isfinite(scale):
        raise NonFiniteError(
            f"{info.file}: {info.name}: scale must be finite, but got {scale}; the file is damaged"
        )
    unit = 4 if layout == "rows" else int(layout)
    if (M if layout == "rows" else M * K) % unit:
        rule = f"weights in runs of {unit}" if unit > 4 else "rows in fours"
        raise _error(info, f"{rule}, for the I2_S layout {layout}", f"{M}x{K}")
    codes = raw[: M * K // 4]
    if not formats.get("i2").codes_valid(codes, threads):
        raise _error(info, "two-bit codes 0, 1 and 2", "a code 3")
    levels = model.buffer(info.name, M * K).view(np.int8)
    span = K if layout == "rows" else unit // 4  # bytes that hold four times as many weights
    _native.i2s_levels(codes, span, levels, threads)
    return levels.reshape(M, K), np.float32(scale)


def _error(info: TensorInfo, expected: object, got: object) -> ModelFormatError:
    return ModelFormatError(info.file, info.name, expected, got, offset=info.offset)
