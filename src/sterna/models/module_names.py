"""The names that an architecture's module may leave out, as the package's docstring lists them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

__all__ = ["LEFT_OUT", "attribute"]

#: Names that a module may leave out -> what holds then.
LEFT_OUT: Mapping[str, Any] = {
    "ACTIVATION": "silu",
    "ACTIVATIONS": (),
    "TERNARY": False,
    "ALIASES": {},
    "ENCODER": False,
    "KV_DTYPE": "i16",
    "PREFIXES": {},
    "TRANSPOSED": (),
    "SKIPPED": {},
    "TOWER": (),
    "GGUF": {},
    "GGUF_WITH_EXPERTS": {},
    "EXPERTS_IN": "",
    "complete": lambda fields: {},
    "unread": lambda config: set(),
    "predictor": lambda builder: None,
}


def attribute(module: ModuleType, name: str) -> Any:
    """Return what an architecture's module has under a name of `LEFT_OUT`, or its default."""
    return getattr(module, name, LEFT_OUT[name])
