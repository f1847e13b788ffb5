"""`AnswerParts`: which text of an answer is reasoning and which is content, as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["CONTENT", "OTHER", "REASONING", "AnswerParts", "PartMarks"]

#: OTHER: headers and calls of answers that consist of messages.
CONTENT, REASONING, OTHER = "content", "reasoning", "other"
#: Kinds of parts by the marks before them.
Marks = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PartMarks:
    """How an answer's family divides it.

    Attributes:
        begins: the kind of the answer's first text; "" if one of `starts` tells, else content.
        starts: kinds by the mark with which an answer may begin.
        moves: by the kind of a part, what may follow it: kinds by the mark before them.
    """

    begins: str = ""
    starts: Marks = ()
    moves: Mapping[str, Marks] = field(default_factory=dict)


class AnswerParts:
    """Follows one answer.

    Attributes:
        kind: kind of the latest text; "" before the first is known.
    """

    def __init__(self, marks: PartMarks) -> None:
        self._marks = marks
        self.kind: str = marks.begins
        self._held = ""  # text of which the kind is not known yet
        self._seen = ""  # the end of the part so far, in which a mark may have begun
        self._trims = False  # line breaks after reasoning belong to it

    def split(self, text: str, final: bool = False) -> Iterator[tuple[str, str]]:
        """Add text, and yield (kind, text) of the parts that are certain by now."""
        if not self.kind:
            text = self._started(self._held + text, final)
        while text:
            piece, text = self._piece(text)
            yield self.kind if not self._trims or piece.strip("\n") else REASONING, piece
            self._move(piece)

    def _started(self, text: str, final: bool) -> str:
        """Find the kind of the first text; returns the text, or nothing and holds it."""
        begin = text.lstrip()
        for mark, kind in self._marks.starts:
            if begin.startswith(mark):
                self.kind = kind
        if not self.kind and (final or not any(m.startswith(begin) for m, _ in self._marks.starts)):
            self.kind = CONTENT
        self._held = "" if self.kind else text
        return text if self.kind else ""

    def _piece(self, text: str) -> tuple[str, str]:
        """Cut text behind the first mark that ends the part, or behind line breaks to trim."""
        if self._trims:
            breaks = len(text) - len(text.lstrip("\n"))
            if breaks:
                return text[:breaks], text[breaks:]
        whole = self._seen + text
        ends = [whole.find(mark) + len(mark) for mark, _ in self._moves if mark in whole]
        cut = max(1, min(ends, default=len(whole)) - len(self._seen))
        return text[:cut], text[cut:]

    def _move(self, piece: str) -> None:
        """Take a piece, which ends with a mark if it has one."""
        self._trims = self._trims and not piece.strip("\n")
        self._seen += piece
        for mark, kind in self._moves:
            if self._seen.endswith(mark):
                self._trims = self.kind == REASONING and kind == CONTENT
                self.kind, self._seen = kind, ""
                return
        longest = max((len(mark) for mark, _ in self._moves), default=1)
        self._seen = self._seen[-longest:]

    @property
    def _moves(self) -> Marks:
        return self._marks.moves.get(self.kind, ())
