"""Sterna runs low-bit language models on CPUs at the speed of the memory bus.

>>> from sterna import LLM
>>> llm = LLM("nano")
>>> for piece in llm.stream("def read_lines(path):", max_tokens=64):
...     print(piece.text, end="")
"""

from __future__ import annotations

# Nothing is imported before it is needed: not the native core, nor typing, which takes tens of
# milliseconds, since Ctrl-C is handled only from __main__.py on.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sterna import ops
    from sterna.errors import (
        DiskError,
        HubError,
        ModelFormatError,
        NonFiniteError,
        RequestError,
        SternaError,
        UnsupportedCPUError,
        UnsupportedModelError,
    )
    from sterna.llm import LLM, Completion, Decision, Piece, SamplingParams, Stats, TokenLogprob
    from sterna.llm.async_llm import AsyncLLM
    from sterna.llm.conversation import Conversation

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Conversation",
    "Decision",
    "DiskError",
    "HubError",
    "ModelFormatError",
    "NonFiniteError",
    "Piece",
    "RequestError",
    "SamplingParams",
    "Stats",
    "SternaError",
    "TokenLogprob",
    "UnsupportedCPUError",
    "UnsupportedModelError",
    "__version__",
    "ops",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "ops":
        return import_module("sterna.ops")
    if name == "AsyncLLM":
        return import_module("sterna.llm.async_llm").AsyncLLM
    if name == "Conversation":
        return import_module("sterna.llm.conversation").Conversation
    if name not in __all__:
        raise AttributeError(f"module 'sterna' has no attribute {name!r}")
    in_errors = name.endswith("Error")
    return getattr(import_module("sterna.errors" if in_errors else "sterna.llm"), name)
