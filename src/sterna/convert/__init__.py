"""Conversion of models to packed directories and GGUF files, with a report of losses.

    convert("models/falcon-e", "falcon-e-t5", "t5")       # the same weights in fewer bytes
    convert("models/llama", "llama.gguf", "gguf:Q8_0")

Weights are read, converted and written one after the other; the result takes its name when it is
whole. `sterna convert` and `sterna quantize` call these functions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sterna import formats, models
from sterna.checkpoints.resolve import resolve
from sterna.convert.gguf_export import TYPES, to_gguf
from sterna.convert.gguf_mixtures import MIXTURES
from sterna.convert.importance_matrix import (
    CalibrationTexts,
    calibrate,
    parts_of,
    require_calibrated,
    spread,
)
from sterna.convert.job import Job, Progress, Squares
from sterna.convert.packed_export import to_directory
from sterna.convert.targets import with_scales
from sterna.errors import RequestError, shown
from sterna.formats.level_tables import Table
from sterna.weights.loss import Loss

__all__ = [
    "GGUF",
    "CalibrationTexts",
    "Loss",
    "calibrate",
    "convert",
    "parts_of",
    "require_calibrated",
    "spread",
    "weight_format",
    "with_scales",
]

GGUF = "gguf:"


def weight_format(format: str | None) -> str | None:
    """Return the weight format of the layers for a format of `convert`, such as `gguf:Q4_0`."""
    if format is None or not format.lower().startswith(GGUF):
        return format
    name = format[len(GGUF) :].upper()
    return TYPES.get(MIXTURES.get(name, name), format)


def convert(
    src: str | Path,
    dst: str | Path,
    format: str | None = None,
    head: str | None = None,
    *,
    method: str | None = None,
    force: bool = False,
    threads: int | None = None,
    i2s: str | None = None,
    squares: Squares | None = None,
    codebook: str | None = None,
    progress: Progress | None = None,
) -> list[Loss]:
    """Write the model `src` at `dst`: a packed directory, or with `gguf:TYPE` a GGUF file.

    format: the linear layers' format; head: that of the embedding and the output head; None for
    either: as they are. method: how layers are rounded to powers of two. force: replace a model at
    `dst`. i2s: as in `LLM`. squares: mean squares of layers' inputs, from `calibrate`, as weights
    of rounding errors. codebook: "learn" for a table of levels of each layer's own, where the
    format has a table (nf4, nf2). progress: called with the number of weights done and in all.
    Returns the error of each matrix. Raises ModelFormatError, UnsupportedModelError,
    NonFiniteError, or RequestError (a format, a place, a full disk).
    """
    if format is not None and not isinstance(format, str):
        raise RequestError(f"format: must be text, but got {shown(format)}")
    to_file = format is not None and format.lower().startswith(GGUF)
    if to_file != str(dst).lower().endswith(".gguf"):
        kind = "a name that ends in .gguf" if to_file else "a folder's name, without .gguf"
        remedy = "" if to_file else "; formats such as gguf:Q4_0 are for a GGUF file"
        raise RequestError(
            f"{dst}: must be {kind}, since the format is {format or 'a packed directory'}{remedy}"
        )
    if method is not None and (format is None or to_file):
        raise RequestError(
            f"method: {format or 'no format'} rounds in one way only, "
            f"but got {shown(method)}; methods "
            "are for the formats pot4, pot4z, pot8 and pot16"
        )
    if codebook is not None:
        _check_codebook(codebook, format)
    if squares is not None:
        require_calibrated(weight_format(format), method)
    path = resolve(src, inspect=models.require_architecture)
    job = Job(path, Path(dst), str(src), head, force, threads, i2s, squares or {}, progress)
    job = replace(job, learns=codebook is not None)
    if format is not None and to_file:
        return to_gguf(job, format[len(GGUF) :].upper())
    return to_directory(job, format, method)


def _check_codebook(codebook: str, format: str | None) -> None:
    """Raise RequestError for a codebook that is not learned, or a format without a table."""
    if codebook != "learn":
        raise RequestError(f"codebook: must be learn, but got {shown(codebook)}")
    to_file = format is not None and format.lower().startswith(GGUF)
    if format is None or to_file or not isinstance(formats.get(format), Table):
        raise RequestError(
            "codebook: learn needs a format whose levels are a table, such as nf4 or nf2, "
            f"but got {format}"
        )
