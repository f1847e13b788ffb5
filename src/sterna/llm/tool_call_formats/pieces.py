"""Texts with holes, matched against an answer that may not have come whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from sterna.engine.decoding.special_tokens import ID, INDEX

__all__ = [
    "NAME",
    "SPACE",
    "Match",
    "Pieces",
    "Unfinished",
    "follows",
    "match",
    "offered",
    "pieces_of",
    "skipped",
]

#: Stands for the name of a tool in the texts of a layout.
NAME = "\ue002"
#: Any white space, or none.
SPACE = " "
_HOLES = (NAME, ID, INDEX)
_PARTS = re.compile(
    rf"([{ID}{INDEX}{NAME}]|\s+)"
    # Models also write white space between two marks that the template writes without any.
    r"|(?<=>)(?=<)|(?<=[A-Z]\])(?=\[)|(?<=\])(?=<[|/]|`)"
)
_NAME_CHARS = 256
_ID = re.compile(r"[A-Za-z0-9_.:-]{0,64}")
_DIGITS = re.compile(r"\d{0,9}")
_SPACES = re.compile(r"\s*")

#: Literals, SPACE and holes. A tuple of texts is a look-ahead: one of them must follow.
Pieces = Sequence[str | tuple[str, ...]]


class Unfinished(Exception):
    """The text ends before it is certain whether it matches."""


class Match(NamedTuple):
    """The end of a match in the text, and the contents of its holes."""

    end: int
    name: str = ""
    id: str = ""


def pieces_of(text: str) -> list[str]:
    """Split a text with holes into pieces."""
    pieces = []
    for part in _PARTS.split(text):
        if part is None:
            pieces.append(SPACE)
        elif part:
            pieces.append(SPACE if part.isspace() else part)
    return pieces


def skipped(text: str, at: int) -> int:
    """Return the position behind white space."""
    spaces = _SPACES.match(text, at)
    return spaces.end() if spaces else at


def _stands(text: str, at: int, mark: str) -> bool:
    """Whether a mark stands at a position; Unfinished if the text ends within it."""
    if text.startswith(mark, at):
        return True
    if len(text) - at < len(mark) and mark.startswith(text[at:]):
        raise Unfinished
    return False


def match(pieces: Pieces, text: str, at: int) -> Match | None:
    """Match all pieces from a position on; Unfinished if more text must come first."""
    holes: dict[str, str] = {}
    for i, piece in enumerate(pieces):
        if piece is SPACE:
            at = skipped(text, at)
        elif isinstance(piece, tuple):
            if not follows(piece, text, at):
                return None
        elif piece in _HOLES:
            quoted = _is_quoted(pieces, i)
            end = _hole_end(piece, pieces[i + 1 : i + 3], text, at, quoted)
            if end is None or holes.setdefault(piece, text[at:end]) != text[at:end]:
                return None
            at = end
        elif _stands(text, at, piece):
            at += len(piece)
        else:
            return None
    return Match(at, holes.get(NAME, ""), holes.get(ID, ""))


def follows(marks: Iterable[str], text: str, at: int) -> bool:
    """Whether one of several marks stands at a position; Unfinished if one may."""
    unfinished = False
    for mark in marks:
        try:
            if _stands(text, at, mark):
                return True
        except Unfinished:
            unfinished = True
    if unfinished:
        raise Unfinished
    return False


def _is_quoted(pieces: Pieces, i: int) -> bool:
    """Whether a hole stands between quotes, in which JSON's escapes are possible."""
    around: list[Any] = [*pieces[max(0, i - 1) : i], *pieces[i + 1 : i + 2]]
    return len(around) == 2 and str(around[0]).endswith('"') and str(around[1]).startswith('"')


def _hole_end(hole: str, after: Pieces, text: str, at: int, quoted: bool) -> int | None:
    """Return where the content of a hole ends; None if none is possible."""
    if hole != NAME:
        filling = (_ID if hole == ID else _DIGITS).match(text, at)
        end = filling.end() if filling else at
        if end == len(text):
            raise Unfinished
        return end if end > at else None
    stops = _stops(after)
    for end in range(at, len(text)):
        c = text[end]
        if end - at > _NAME_CHARS:
            return None
        if quoted and end > at and text[end - 1] == "\\":
            continue
        if any(text.startswith(stop, end) for stop in stops):
            return end if end > at else None
        if c.isspace():
            return end if end > at and after and after[0] is SPACE else None
    raise Unfinished


def _stops(after: Pieces) -> tuple[str, ...]:
    """Return the texts before which a name ends."""
    for piece in after:
        if piece is not SPACE:
            return piece if isinstance(piece, tuple) else (piece,)
    return ()


def offered(name: str, names: Collection[str] | None) -> str | None:
    """Return the name of the offered tool that a call names; None if none has it.

    names: the tools' names; None: any name is offered. Models write a namespace before a name, and
    a number behind it, also where their template does not.
    """
    bare = plain = name.removeprefix("functions.")
    plain = plain.rpartition(":")[0] if plain.rpartition(":")[2].isdigit() else plain
    if names is None:
        return plain
    return next((one for one in (name, bare, plain) if one in names), None)
