"""Sterna runs low-bit language models on CPUs at the speed of the memory bus.

>>> from sterna import LLM
>>> llm = LLM("nano")
>>> for piece in llm.stream("def read_lines(path):", max_tokens=64):
...     print(piece.text, end="")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sterna.errors import (
    HubError,
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedCPUError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from sterna import ops
    from sterna.conversation import Conversation
    from sterna.llm import LLM, Completion, Piece, Stats, TokenLogprob

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Completion",
    "Conversation",
    "HubError",
    "ModelFormatError",
    "NonFiniteError",
    "Piece",
    "RequestError",
    "Stats",
    "SternaError",
    "TokenLogprob",
    "UnsupportedCPUError",
    "UnsupportedModelError",
    "__version__",
    "ops",
]


def __getattr__(name: str) -> Any:  # the native core loads when it is first needed
    if name == "ops":
        return import_module("sterna.ops")
    if name == "Conversation":
        return import_module("sterna.conversation").Conversation
    if name in __all__:
        return getattr(import_module("sterna.llm"), name)
    raise AttributeError(f"module 'sterna' has no attribute {name!r}")
