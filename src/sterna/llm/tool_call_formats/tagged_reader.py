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
    """The text that opens an argument. texts: whether its values are raw texts."""

    pieces: Pieces
    first: str
    texts: bool | None


class TaggedReader:
    """Reads arguments between tags, one at a time.

    ends: the texts with which a call may end. again: those with which the next one may begin.
    schema: schema of the arguments, possibly invalid.
    """

    def __init__(
        self,
        form: TaggedArguments,
        ends: Sequence[str],
        again: Sequence[str],
        schema: Mapping[str, Any],
    ) -> None:
        self._form, self._schema = form, schema
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._ends, self._again = ends, tuple(again)
        self._tags = _tags(form)
        self._closes = form.closes.strip()
        self._marks = [*(tag.first for tag in self._tags), *ends, *again]
        self._events = {self._closes, *self._marks}
        self._longest = max(map(len, self._events)) + 64
        self._lines = form.opens.endswith("\n")  # whether tags have lines of their own
        self._names: list[str] = []
        self._count, self._begun = 0, False
        self._searched = 0  # up to where a value that has no end yet was searched

    def read(self, pending: str, final: bool) -> tuple[str, int, bool]:
        """Read as `ArgumentsReader`."""
        json_text, at = "" if self._begun else "{", 0
        self._begun = True
        try:
            while True:
                at = skipped(pending, at)
                text, end = self._argument(pending, at, final)
                if end < 0 and self._ended(pending, at):
                    return json_text + "}", at, True
                if end < 0:  # text between arguments
                    end = min(_found(pending, self._marks, at, len(pending)), default=-1)
                if end < 0:
                    break
                json_text, at, self._searched = json_text + text, end, 0
        except Unfinished:
            self._searched = max(0, self._searched - at)
        return json_text, at, False

    def _ended(self, pending: str, at: int) -> bool:
        """Whether a call ends here; Unfinished if it may still go on."""
        return not self._ends or follows((*self._ends, *self._again), pending, at)

    def _argument(self, pending: str, at: int, final: bool) -> tuple[str, int]:
        """Read one argument; returns its JSON and its end, which is -1 if there is none."""
        opened = self._opened(pending, at)
        if opened is None:
            return "", -1
        tag, name, begin = opened
        end, after = self._value_end(pending, begin, name, final)
        text = pending[begin:end]
        if self._lines:
            text = text.removeprefix("\n")
        if self._lines or (after == end and self._form.closes.endswith("\n")):
            text = text.removesuffix("\n")
        self._names.append(name)
        value = self._value(text, tag, name)
        if value is None:
            return "", after
        comma = ", " if self._count else ""
        self._count += 1
        return f"{comma}{json.dumps(name, ensure_ascii=False)}: {value}", after

    def _value(self, text: str, tag: _Tag, name: str) -> str | None:
        """Return an argument as JSON; None if it is left out."""
        if self._form.quotes:
            return read_json(text, as_text=bool(tag.texts))
        return read_argument(text, self._properties.get(name), self._schema, tag.texts)

    def _opened(self, pending: str, at: int) -> tuple[_Tag, str, int] | None:
        """Return the tag at a position, its name, and where the value begins."""
        unfinished = at == len(pending)
        for tag in self._tags:
            try:
                if matched := match(tag.pieces, pending, at):
                    return tag, matched.name, matched.end
            except Unfinished:
                unfinished = True
        if unfinished:
            raise Unfinished
        return None

    def _value_end(self, pending: str, begin: int, name: str, final: bool) -> tuple[int, int]:
        """Return the ends of a value and of its closing tag.

        Values contain tags as well. So a tag closes a value only if something follows that may
        follow an argument. Without such a tag the value ends before the next argument of the
        schema, or before the end of the call.
        """
        close = ended = -1  # the first of what may be the end, if nothing is for sure
        size = len(self._closes)
        for at in sorted(_found(pending, self._events, max(begin, self._searched), len(pending))):
            if pending.startswith(self._closes, at):
                if self._goes_on(pending, at + size, final):
                    return at, at + size
                close = at if close < 0 else close
            elif ended >= 0 and pending.startswith(self._again, at):
                return ended, ended
            elif self._is_next(pending, at, name):
                return at, at
            elif ended < 0 and self._is_on_its_line(pending, at) and self._is_end(pending, at):
                if self._closes_call(pending, at, final):
                    return at, at
                ended = at
        if not final:
            if close < 0 and ended < 0:
                self._searched = max(begin, len(pending) - self._longest)
            raise Unfinished
        if ended >= 0 and not 0 <= close < ended:
            return ended, ended
        if close >= 0:
            return close, close + size
        raise Unfinished

    def _goes_on(self, pending: str, at: int, final: bool) -> bool:
        """Whether another argument or the end of the call follows."""
        at = skipped(pending, at)
        if not self._ends or (final and at == len(pending)):
            return True
        try:
            return follows(self._marks, pending, at)
        except Unfinished:
            if final:
                return False
            raise

    def _is_on_its_line(self, pending: str, at: int) -> bool:
        """Whether a tag stands where the family writes one: at the beginning of a line, if so."""
        return not self._lines or pending[:at].rstrip(" \t").endswith("\n")

    def _is_next(self, pending: str, at: int, name: str) -> bool:
        """Whether an argument of the schema begins here that the call has not had yet."""
        starts = any(pending.startswith(tag.first, at) for tag in self._tags)
        opened = self._opened(pending, at) if starts and self._is_on_its_line(pending, at) else None
        if opened is None or (self._lines and pending[opened[2] : opened[2] + 1] not in ("\n", "")):
            return False
        return opened[1] in self._properties and opened[1] not in (name, *self._names)

    def _is_end(self, pending: str, at: int) -> bool:
        return any(pending.startswith(mark, at) for mark in self._ends[:1])

    def _closes_call(self, pending: str, at: int, final: bool) -> bool:
        """Whether the call ends here, and with it the answer or another call begins."""
        for mark in self._ends:
            at = skipped(pending, at)
            if follows((mark,), pending, at):
                at += len(mark)
        at = skipped(pending, at)
        if at == len(pending) and not final:
            raise Unfinished
        return at == len(pending) or follows(self._again, pending, at)


def _tags(form: TaggedArguments) -> list[_Tag]:
    """Return a tag for each way in which an argument may open."""
    tags = []
    for tag in dict.fromkeys((form.opens, *(tag for _, tag in form.opens_other))):
        pieces = pieces_of(tag.strip().replace("{}", NAME))
        texts = (tag == form.opens) if form.opens_other else None
        tags.append(_Tag(pieces, str(pieces[0]), texts))
    return tags


def _found(pending: str, marks: Sequence[str] | set[str], begin: int, end: int) -> list[int]:
    """Return all positions of marks."""
    places = []
    for mark in marks:
        at = pending.find(mark, begin, end)
        while at >= 0:
            places.append(at)
            at = pending.find(mark, at + 1, end)
    return places
