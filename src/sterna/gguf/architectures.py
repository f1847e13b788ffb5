"""The architectures of GGUF files, discovered in the modules of `models`."""

from __future__ import annotations

from sterna.models import modules
from sterna.models.gguf_architecture import GgufArchitecture

__all__ = ["ARCHITECTURES_OF", "WITH_EXPERTS"]


def _found(constant: str) -> dict[str, GgufArchitecture]:
    """Return the values of a constant of all modules, by `general.architecture`."""
    found: dict[str, GgufArchitecture] = {}
    for module in modules():
        found |= getattr(module, constant, {})
    return dict(sorted(found.items()))


ARCHITECTURES_OF = _found("GGUF")
#: Architectures of files with experts, where files of the same name may have dense FFNs.
WITH_EXPERTS = _found("GGUF_WITH_EXPERTS")
