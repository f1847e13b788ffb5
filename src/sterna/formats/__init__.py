"""Weight formats, one file each; every module of this package that has a FORMAT is one."""

from __future__ import annotations

import importlib
import pkgutil

from sterna.errors import RequestError
from sterna.formats.base import Format, PackedWeight, fma_f32, quantize_activations
from sterna.formats.shadow import Shadow

__all__ = ["Format", "PackedWeight", "Shadow", "fma_f32", "get", "names", "quantize_activations"]

_FORMATS: dict[str, Format] = {}
for _info in pkgutil.iter_modules(__path__):
    _format = getattr(importlib.import_module(f"{__name__}.{_info.name}"), "FORMAT", None)
    if isinstance(_format, Format):
        _FORMATS[_format.name] = _format


def names() -> list[str]:
    """Names of all formats, sorted."""
    return sorted(_FORMATS)


def get(name: str) -> Format:
    """The format of a name; RequestError lists the names where there is none."""
    try:
        return _FORMATS[name]
    except (KeyError, TypeError):
        raise RequestError(
            f"format: must be one of {', '.join(names())}, but got {name!r}"
        ) from None
