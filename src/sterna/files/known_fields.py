"""The fields of a JSON object that another library writes: which are read, and which may be there.

Such a library computes what its fields say. So each field is read, or is known to change nothing,
or has a value that changes nothing; everything else is refused by name. Objects into which a
model's makers write fields of their own, for code next to the model, are `open`: no library reads
such a field, so that it gives a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sterna.errors import UnsupportedModelError, shown, warn

__all__ = ["KnownFields"]

NAMED = 20  # names in a warning at most


@dataclass(frozen=True)
class KnownFields:
    """Names of fields.

    read: those that Sterna reads. without_effect: those that change nothing here, whatever they
    say. refused: those that Sterna does not run -> their values that change nothing, in addition
    to null, false and what is empty. These are allowed for names that are not listed, too.
    open: whether other names give a warning instead of an error.
    """

    read: frozenset[str] = frozenset()
    without_effect: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    open: bool = False

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return self.read | self.without_effect | self.refused.keys()

    def plus(
        self,
        read: str = "",
        without_effect: str = "",
        refused: str = "",
        neutral: Mapping[str, tuple[object, ...]] | None = None,
    ) -> KnownFields:
        """Return these names and further ones, separated by white space.

        neutral: further refused names -> their values that change nothing.
        """
        return replace(
            self,
            read=self.read.union(read.split()),
            without_effect=self.without_effect.union(without_effect.split()),
            refused={**self.refused, **dict.fromkeys(refused.split(), ()), **(neutral or {})},
        )

    def check(
        self, settings: Mapping[str, Any], file: Path, prefix: str = "", remedy: str = ""
    ) -> None:
        """Raise UnsupportedModelError for a field that asks for something that Sterna lacks.

        prefix: that of names in the message. remedy: its end. An open object's unknown names are in
        one RuntimeWarning.
        """
        unknown = []
        for name, value in settings.items():
            if name in self.read or name in self.without_effect or _is_unset(value):
                continue
            if self.open and name not in self.refused:
                unknown.append(name)
                continue
            neutral = self.refused.get(name, ())
            if any(value == one and isinstance(value, bool) == (one is True) for one in neutral):
                continue
            rule = " or ".join(["unset", *map(shown, neutral)])
            known = "does not run this" if name in self.refused else "does not know this field"
            raise UnsupportedModelError(
                f"{file}: {prefix}{name}: must be {rule}, but got {shown(value)}; Sterna {known}"
                f"{remedy and f'; {remedy}'}"
            )
        if unknown:
            names = ", ".join(shown(prefix + name) for name in unknown[:NAMED])
            names += f" and {len(unknown) - NAMED} more" * (len(unknown) > NAMED)
            warn(
                f"{file}: {names}: no known field of such a file, so that it changes nothing here",
                stacklevel=3,
            )


def _is_unset(value: object) -> bool:
    return value is None or value is False or value in ("", [], {})
