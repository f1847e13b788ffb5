"""`prism.hadamard.*`: GGUF files whose weights were multiplied by a Hadamard matrix (Prism's fork).

The input of such a weight is rotated first, x' = H(signs * x) in blocks; rows of the embedding are
rotated back, h = signs * (H z). Without this, a model speaks fluent nonsense, so files with any
other contract are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sterna.errors import UnsupportedModelError, shown
from sterna.files.words import words
from sterna.gguf.file import GgufModel
from sterna.gguf.metadata import Metadata

__all__ = ["hadamard_of", "is_grouped"]

PREFIX = "prism.hadamard."
EMBEDDING = "token_embd.weight"
#: Keys with the one value that they may have.
_FIXED = {"transform": "normalized-sylvester-walsh-hadamard", "axis": "input-last-dimension"}
_OTHERS = words("""
    version block_size sign_mode sign_widths sign_values weight_names inverse_weight_names
    gdn_v_grouped tied_output
""")


def hadamard_of(model: GgufModel, modules: Mapping[str, str]) -> dict[str, Any] | None:
    """Translate the metadata to the field of models/hadamard.py; None without such keys.

    modules: tensors whose inputs may be rotated -> names of their layers. Raises
    UnsupportedModelError for any other contract, ModelFormatError for one that does not fit the
    file.
    """
    m = model.metadata
    given = [key for key in m if key.startswith(PREFIX)]
    if not given:
        return None
    for key in given:
        if key.removeprefix(PREFIX) not in (*_FIXED, *_OTHERS):
            raise _unknown(m, key, "one of the contract's versions 1 and 2", key)
    for name, value in _FIXED.items():
        if m.text(PREFIX + name) != value:
            raise _unknown(m, PREFIX + name, value, m.text(PREFIX + name))
    _check_version(model)
    block = m.integer(f"{PREFIX}block_size", most=1 << 16)
    if block == 0 or block & (block - 1):
        raise m.error(f"{PREFIX}block_size", "a power of two", block)
    signs = _signs(m)
    inputs = [_module(model, "weight_names", name, modules) for name in _names(m, "weight_names")]
    tables = {EMBEDDING: "model.embed_tokens"}
    rows = [
        _module(model, "inverse_weight_names", name, tables)
        for name in _names(m, "inverse_weight_names")
    ]
    for key in ("weight_names", "inverse_weight_names"):
        for name in _names(m, key):
            width = model.tensors[name].shape[-1]
            if width % block or (signs is not None and str(width) not in signs):
                raise m.error(
                    PREFIX + key,
                    f"weights whose width has signs and is whole blocks of {block}",
                    f"{name}, of width {width}",
                )
    if rows and "output.weight" not in model.tensors:
        inputs.append("lm_head")  # the embedding's rows are the head's
    is_grouped(m)  # raises if the value is no boolean
    return {"block_size": block, "signs": signs, "inputs": inputs, "rows": rows}


def is_grouped(m: Metadata) -> bool:
    """Whether folded `ssm_out` have the columns of value heads in Hugging Face's order."""
    return m.boolean(f"{PREFIX}gdn_v_grouped", False)


def _check_version(model: GgufModel) -> None:
    """Check the version. In the second, the head's rows are the embedding's."""
    m, key = model.metadata, f"{PREFIX}version"
    version, tied = m.integer(key), m.boolean(f"{PREFIX}tied_output", False)
    if version not in (1, 2):
        raise _unknown(m, key, "1 or 2", version)
    if tied != (version == 2):
        raise _unknown(m, f"{PREFIX}tied_output", version == 2, tied)
    if tied and "output.weight" in model.tensors:
        raise m.error(f"{PREFIX}tied_output", "false in a file with output.weight", True)


def _signs(m: Metadata) -> dict[str, str] | None:
    """Return + and - for each width; None: all are +."""
    key = f"{PREFIX}sign_mode"
    mode = m.text(key)
    if mode not in ("identity", "explicit"):
        raise _unknown(m, key, "identity or explicit", mode)
    if mode == "identity":
        for other in ("sign_widths", "sign_values"):
            if PREFIX + other in m:
                raise m.error(PREFIX + other, "nothing, where sign_mode is identity", "an array")
        return None
    array = m.array(f"{PREFIX}sign_widths")
    widths = [int(width) for width in array] if array.dtype.kind in "iu" else []
    if min(widths, default=0) < 1 or len(set(widths)) < len(widths):
        raise m.error(f"{PREFIX}sign_widths", "different whole numbers", widths)
    values = m.numbers(f"{PREFIX}sign_values", sum(widths))
    if not (np.abs(values.astype(np.float64)) == 1).all():
        raise m.error(f"{PREFIX}sign_values", "only 1 and -1", "another value")
    text = "".join("+" if value > 0 else "-" for value in values)
    ends = np.cumsum(widths)
    return {str(w): text[end - w : end] for w, end in zip(widths, ends, strict=True)}


def _names(m: Metadata, key: str) -> list[str]:
    names = m.texts(PREFIX + key) if PREFIX + key in m else []
    if len(set(names)) < len(names):
        raise m.error(PREFIX + key, "each name once", "one twice")
    return names


def _module(model: GgufModel, key: str, name: str, modules: Mapping[str, str]) -> str:
    """Return the name of the layer whose tensor `name` may be rotated."""
    if name not in modules or name not in model.tensors:
        raise _unknown(model.metadata, PREFIX + key, "weights of this model", name)
    return modules[name]


def _unknown(m: Metadata, key: str, expected: object, got: object) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{m.path}: {key} must be {shown(expected)}, but got {shown(got)}; Sterna does not know "
        "this transform, and without it the model would answer nonsense"
    )
