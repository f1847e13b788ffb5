"""Matrices that got another format because their rows do not fill the requested one's blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sterna import formats
from sterna.errors import warn
from sterna.formats import Format, PackedWeight

__all__ = ["FormatFallback", "Made", "format_fallbacks", "warn_of_fallbacks"]

MOST_NAMES = 8  # that a line lists
_LAYER = re.compile(r"\.\d+(?=\.|$)")


class Made(NamedTuple):
    """A matrix of K columns, and the format that it got."""

    name: str
    K: int
    format: str


class FormatFallback(NamedTuple):
    """Matrices that have the format `taken` instead of `asked`."""

    asked: Format
    taken: str
    made: tuple[Made, ...]

    def __str__(self) -> str:
        """Name the matrices in one line, without the numbers of layers."""
        kinds = [*dict.fromkeys(_LAYER.sub(".*", one.name) for one in self.made)]
        more = f" and {len(kinds) - MOST_NAMES} more" if len(kinds) > MOST_NAMES else ""
        widths = " and ".join(map(str, sorted({one.K for one in self.made})))
        matrices = "1 matrix has" if len(self.made) == 1 else f"{len(self.made)} matrices have"
        return (
            f"{self.asked}: rows of {widths} are no whole blocks of {self.asked.scales.block}, so "
            f"{matrices} {self.taken} in its place: {', '.join(kinds[:MOST_NAMES])}{more}"
        )


def format_fallbacks(
    made: Iterable[Made], format: str | None, head: str | None
) -> list[FormatFallback]:
    """Group the matrices of layers and tables that could not have the requested format.

    GGUF files hold them in f16 if no other format fits.
    """
    layers, tables = list[Made](), list[Made]()
    for one in made:
        (tables if "embed_tokens" in one.name or one.name == "lm_head" else layers).append(one)
    return [
        fallback
        for asked, some in ((format, layers), (head, tables))
        if asked is not None and formats.known(asked)  # heads have names that are no formats
        for fallback in _of_one(formats.get(asked), some)
    ]


def _of_one(asked: Format, made: list[Made]) -> list[FormatFallback]:
    by_format: dict[str, list[Made]] = {}
    for one in made:
        other = formats.fitting(asked, one.K).name
        taken = other if other != asked.name else "f16"
        if one.K % asked.scales.block and one.format.lower() == taken:
            by_format.setdefault(one.format, []).append(one)
    return [FormatFallback(asked, taken, tuple(some)) for taken, some in by_format.items()]


def warn_of_fallbacks(
    modules: Mapping[str, PackedWeight], format: str | None, head: str | None
) -> None:
    """Warn of a model's matrices that could not have the requested format, by groups."""
    made = (Made(name, weight.K, weight.format.name) for name, weight in modules.items())
    for one in format_fallbacks(made, format, head):
        warn(str(one), stacklevel=3)
