"""`WordWrap`: breaks the lines of a streamed answer between words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import IO, Any

__all__ = ["WordWrap", "columns_of"]

_FENCE = re.compile(r"`{3,}|~{3,}")
_MARKER = re.compile(r"[-*+>]|\d{1,3}[.)]")
#: Characters that begin no line, and that end none, in scripts without spaces.
_CLOSING = frozenset("、。，．）」』】》〉！？：；ー々…")
_OPENING = frozenset("（「『【《〈")
INDENTED_CODE = 4  # columns, as in Markdown
TAB = 8


def columns_of(stream: IO[Any]) -> int:
    """Return the columns of a stream's terminal, 0 if it has none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


class WordWrap:
    """Takes a text piece by piece, and gives it back with line breaks between words.

    The last word is held back until it ends. Lines of code and of tables stay as they are, and so
    do words longer than a line. Further lines of a list's item are indented like its first.

    columns: returns the width of the terminal, which may change; 0 leaves the text as it is.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._most = 0
        self._fence = ""  # that began the block of code which is open
        self._begin_line()

    def _begin_line(self) -> None:
        self._column = 0
        self._blanks = ""  # behind the last word, or before the first
        self._word, self._width = "", 0
        self._is_long = False  # whether the last word was longer than a line, and goes on
        self._line = ""  # what is known of a line that stays as it is
        self._words = 0
        self._indent = 0
        self._kept = bool(self._fence)

    def feed(self, text: str) -> str:
        """Return what can be printed now."""
        most = self._columns()
        if most <= 0:
            return self.end() + text
        self._most = most
        return "".join(map(self._take, text))

    def end(self) -> str:
        """Return the text that was held back; the next text begins a line."""
        rest = self._placed() + self._fitting_blanks()
        self._fence = ""
        self._begin_line()
        return rest

    def _take(self, character: str) -> str:
        if character == "\n":
            return self._newline()
        blank, before = character in " \t", ""
        if blank or (self._word and _may_break(self._word[-1], character)):
            before = self._placed()  # which tells whether the line stays as it is
        if self._kept:
            self._line += character
            return before + character
        if blank:
            self._is_long = False
            self._blanks += character
        elif self._is_long:
            self._advance(_width(character))
            return character
        else:
            self._word += character
            self._width += _width(character)
            if self._width > self._most:  # the terminal breaks it, so that it can be copied
                before += self._placed()
                self._is_long = not self._kept
        return before

    def _newline(self) -> str:
        rest = self._placed() + ("" if self._kept else self._fitting_blanks())
        line, within = self._line.strip(), self._kept and self._words == 0
        if within and line.startswith(self._fence) and not line.strip(self._fence[0]):
            self._fence = ""  # the block ends
        self._begin_line()
        return rest + "\n"

    def _placed(self) -> str:
        """Return the word that was held back, on this line or on the next."""
        word, width, blanks = self._word, self._width, self._blanks
        if not word:
            return ""
        self._word, self._width, self._blanks = "", 0, ""
        room = self._blanks_width(blanks)
        first, self._words = self._words == 0, self._words + 1
        if first:
            self._look_at(word, room)
        if first or self._kept or self._column + room + width <= self._most:
            self._advance(room + width)
            return blanks + word
        self._column = 0
        self._advance(self._indent + width)
        return "\n" + " " * self._indent + word

    def _advance(self, width: int) -> None:
        self._column = (self._column + width - 1) % self._most + 1 if width else self._column

    def _look_at(self, word: str, indent: int) -> None:
        """Tell by the first word of a line what the line is."""
        fence, marker = _FENCE.match(word), _MARKER.fullmatch(word)
        if fence:
            self._fence = fence[0]
        self._kept = bool(fence) or word[0] == "|" or (indent >= INDENTED_CODE and not marker)
        self._indent = min(indent + (len(word) + 1 if marker else 0), self._most // 2)

    def _fitting_blanks(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks if self._column + self._blanks_width(blanks) <= self._most else ""

    def _blanks_width(self, blanks: str) -> int:
        at = self._column
        for blank in blanks:
            at += TAB - at % TAB if blank == "\t" else 1
        return at - self._column


def _may_break(before: str, after: str) -> bool:
    """Whether a line may end between two characters: beside one of a script without spaces."""
    widths = [0 if _is_hangul(one) else _width(one) for one in (before, after)]
    if 0 in widths or 2 not in widths:  # marks belong to the character before them
        return False
    return before not in _OPENING and after not in _CLOSING


def _is_hangul(character: str) -> bool:
    """Whether a character is wide and yet part of words between spaces."""
    return "\uac00" <= character <= "\ud7a3"


def _width(text: str) -> int:
    from prompt_toolkit.utils import get_cwidth

    return get_cwidth(text)
