"""`TaggedReader`: reads arguments between tags, also where a model forgets to close one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sterna.engine.decoding.tagged_arguments import TaggedArguments
from sterna.llm.tool_call_formats.arguments_readers import read_argument, read_json
from sterna.llm.tool_call_formats.pieces import (
    NAME,
    Pieces,
    Unfinished,
    follows,
    match,
    pieces_of,
    skipped,
)

__all__ = ["TaggedReader"]


class _Tag(NamedTuple):
    """What opens an argument. texts: whether its values are texts as they stand."""

    pieces: Pieces
    first: str
    texts: bool | None


class TaggedReader:
    """Reads arguments between tags, one at a time.

    ends: the texts with which a call may end. again: those with which the next one may begin.
    schema: of the arguments, which may be of no use.
    """

    def __init__(
        self, form: TaggedArguments, ends: Sequence[str], again: Sequence[str],
        schema: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._form, self._schema = form, schema
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._ends, self._again = ends, again
        self._tags = _tags(form)
        self._closes = form.closes.strip()
        self._marks = [*(tag.first for tag in self._tags), *ends, *again]
        self._lines = form.opens.endswith("\n")  # whether tags have lines of their own
        self._names: list[str] = []
        self._count, self._begun = 0, False
        self._searched = 0  # up to where a value that has no end yet was searched

    def read(self, held: str, final: bool) -> tuple[str, int, bool]:
        """Read as `ArgumentsReader`."""
        found, at = "" if self._begun else "{", 0
        self._begun = True
        try:
            while True:
                at = skipped(held, at)
                text, end = self._argument(held, at, final)
                if end < 0 and self._ended(held, at):
                    return found + "}", at, True
                if end < 0:  # text between arguments
                    end = min(_found(held, self._marks, at, len(held)), default=-1)
                if end < 0:
                    break
                found, at, self._searched = found + text, end, 0
        except Unfinished:
            self._searched = max(0, self._searched - at)
        return found, at, False

    def _ended(self, held: str, at: int) -> bool:
        """Whether a call ends here; Unfinished if it may still go on."""
        return not self._ends or follows((*self._ends, *self._again), held, at)

    def _argument(self, held: str, at: int, final: bool) -> tuple[str, int]:
        """Read one argument; returns its JSON and its end, which is -1 if there is none."""
        opened = self._opened(held, at)
        if opened is None:
            return "", -1
        tag, name, begin = opened
        end, after = self._value_end(held, begin, name, final)
        text = held[begin:end]
        if self._lines:
            text = text.removeprefix("\n").removesuffix("\n")
        self._names.append(name)
        value = self._value(text, tag, name)
        if value is None:
            return "", after
        comma = ", " if self._count else ""
        self._count += 1
        return f"{comma}{json.dumps(name, ensure_ascii=False)}: {value}", after

    def _value(self, text: str, tag: _Tag, name: str) -> str | None:
        """Return an argument as JSON; None if it is left out."""
        given = self._properties.get(name)
        if self._form.quotes or tag.texts:
            return read_json(text, as_text=bool(tag.texts))
        return read_argument(text, given, self._schema)

    def _opened(self, held: str, at: int) -> tuple[_Tag, str, int] | None:
        """Return the tag at a position, its name, and where the value begins."""
        unfinished = at == len(held)
        for tag in self._tags:
            try:
                if found := match(tag.pieces, held, at):
                    return tag, found.name, found.end
            except Unfinished:
                unfinished = True
        if unfinished:
            raise Unfinished
        return None

    def _value_end(self, held: str, begin: int, name: str, final: bool) -> tuple[int, int]:
        """Return where a value ends, and where what closes it ends.

        Only what may follow an argument makes a tag its end: values contain tags as well. A value
        that is not closed ends before the next argument of the schema, or before the call's end.
        """
        first, search = -1, max(begin, self._searched)
        close = held.find(self._closes, search)
        while True:
            until = len(held) if close < 0 else close
            if (cut := self._unclosed(held, search, until, name, final)) >= 0:
                return cut, cut
            if close < 0:
                break
            first = close if first < 0 else first
            after = close + len(self._closes)
            if self._goes_on(held, after, final):
                return close, after
            search = after
            close = held.find(self._closes, search)
        if final and first >= 0:
            return first, first + len(self._closes)
        if first < 0 and not final:
            self._searched = max(begin, len(held) - len(self._closes) - 64)
        raise Unfinished

    def _goes_on(self, held: str, at: int, final: bool) -> bool:
        """Whether another argument or the end of the call follows."""
        at = skipped(held, at)
        if not self._ends or (final and at == len(held)):
            return True
        try:
            return follows(self._marks, held, at)
        except Unfinished:
            if final:
                return False
            raise

    def _unclosed(self, held: str, begin: int, end: int, name: str, final: bool) -> int:
        """Return where a value ends that nothing closes; -1 if none does."""
        marks = {tag.first for tag in self._tags}
        for at in sorted(_found(held, marks, begin, end)):
            before = held[:at].rstrip(" \t")
            if self._lines and not before.endswith("\n"):
                continue
            if self._is_next(held, at, name):
                return at
        for at in sorted(_found(held, self._ends[:1], begin, end)):
            if (held[:at].endswith("\n") or not self._lines) and self._is_end(held, at, final):
                return at
        return -1

    def _is_next(self, held: str, at: int, name: str) -> bool:
        """Whether an argument of the schema begins here that the call has not had yet."""
        opened = self._opened(held, at)
        if opened is None or (self._lines and held[opened[2] : opened[2] + 1] not in ("\n", "")):
            return False
        return opened[1] in self._properties and opened[1] not in (name, *self._names)

    def _is_end(self, held: str, at: int, final: bool) -> bool:
        """Whether the call ends here, and with it the answer or another call begins."""
        for mark in self._ends:
            at = skipped(held, at)
            if follows((mark,), held, at):
                at += len(mark)
        at = skipped(held, at)
        if at == len(held):
            if not final:
                raise Unfinished
            return True
        return follows(self._again, held, at)


def _tags(form: TaggedArguments) -> list[_Tag]:
    """Return a tag for each way in which an argument may open."""
    found = []
    for tag in dict.fromkeys((form.opens, *(tag for _, tag in form.opens_other))):
        pieces = pieces_of(tag.strip().replace("{}", NAME))
        texts = (tag == form.opens) if form.opens_other else None
        found.append(_Tag(pieces, str(pieces[0]), texts))
    return found


def _found(held: str, marks: Sequence[str] | set[str], begin: int, end: int) -> list[int]:
    """Return all positions of marks."""
    places = []
    for mark in marks:
        at = held.find(mark, begin, end)
        while at >= 0:
            places.append(at)
            at = held.find(mark, at + 1, end)
    return places
