"""The architectures of GGUF files, discovered in the modules of `models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from sterna.models import attribute, modules, namesakes
from sterna.models.gguf_architecture import GgufArchitecture

__all__ = ["ARCHITECTURES_OF", "WITH_EXPERTS"]


class _Architectures(Mapping[str, GgufArchitecture]):
    """The values of a constant of all modules, by `general.architecture`.

    A name is looked for in the modules that are named so, and others are imported only where none
    of these has it: all of them take a third of a second.
    """

    def __init__(self, constant: str) -> None:
        self._constant = constant

    def __getitem__(self, name: str) -> GgufArchitecture:
        for module in namesakes(name):
            if name not in attribute(module, "GGUF"):
                continue
            own: dict[str, GgufArchitecture] = attribute(module, self._constant)
            if name in own:
                return own[name]
            if elsewhere := attribute(module, "EXPERTS_IN"):
                own = attribute(next(namesakes(elsewhere)), self._constant)
            return own[name]
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, GgufArchitecture]:
        found: dict[str, GgufArchitecture] = {}
        for module in modules():
            found |= attribute(module, self._constant)
        return dict(sorted(found.items()))


ARCHITECTURES_OF = _Architectures("GGUF")
#: Architectures of files with experts, where files of the same name may have dense FFNs.
WITH_EXPERTS = _Architectures("GGUF_WITH_EXPERTS")
