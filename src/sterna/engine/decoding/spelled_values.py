"""`SpelledValues`: arguments of a tool call in a spelling such as Python's or Gemma's.

The spelling says how a value of JSON's types is written; the schema says which values may come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.escaped_lark import PYTHON_STRING, string_of
from sterna.engine.decoding.json_schema_rewriting import for_llguidance, grammar_options
from sterna.engine.decoding.special_tokens import SpecialTokens
from sterna.engine.decoding.tagged_arguments import (
    constants,
    left_out_of_arguments,
    narrowing,
    resolved,
)

__all__ = ["SpelledValues"]

#: Deeper values have any value that the spelling writes.
MAX_DEPTH = 16
_PYTHON_TEXT = r"/'([^'\\\x00-\x1f]|\\['\"\\nrt])*'/"  # Python reads no NUL
_SCALARS = ("string", "integer", "number", "boolean", "null")


@dataclass(frozen=True)
class SpelledValues:
    """A spelling of values. `rules` makes the grammar of a call's arguments.

    Attributes:
        argument: before each argument of the call, with {} for its name. after: the text after each
        argument, with {} for its name. key: before each member of an object within a value, with {}
        for its name. member_end: the text after each member of an object, with {} for its name.
        comma: between arguments, members and items. object, array: the texts that open and close
        these. item, item_end: around each item of an array. text: the marks that open and close a
        text, which has no escapes; None is Python's quoted text. value_end: the text after each
        value that is no text. words: true, false and null. ordered: whether arguments come in the
        order of the alphabet.
    """

    argument: str
    after: str = ""
    key: str = "'{}': "
    member_end: str = ""
    comma: str = ", "
    object: tuple[str, str] = ("{", "}")
    array: tuple[str, str] = ("[", "]")
    item: str = ""
    item_end: str = ""
    text: tuple[str, str] | None = None
    value_end: str = ""
    words: tuple[str, str, str] = ("True", "False", "None")
    ordered: bool = False

    def rules(
        self, call: str, schema: dict[str, Any], special: SpecialTokens
    ) -> tuple[str, list[str]]:
        """Return the body of a call's rule, and the grammar lines that it needs."""
        made = _Rules(self, call, schema, special)
        body = made.members(schema, self.argument, self.after, 0)
        return body, made.lines

    def text_argument(self, name: str, lark: str, special: SpecialTokens) -> str:
        """Return the body of a call's rule whose only argument is a text of a Lark grammar."""
        before, after = (text.replace("{}", name) for text in (self.argument, self.after))
        if self.text is None:
            inner = f"{string_of(lark, PYTHON_STRING, chr(39))} {special.quoted(after)}"
        else:
            opens, closes = self.text
            inner = f"{special.quoted(opens)} {special.after_lark(lark, closes + after)}"
        return f"{special.quoted(before)} {inner}"

    def spelled(self, value: Any) -> str:
        """Return the spelling of a value."""
        if isinstance(value, str):
            return f"{self.text[0]}{value}{self.text[1]}" if self.text else _python(value)
        return self._plainly(value) + self.value_end

    def arguments(self, values: Mapping[str, Any]) -> str:
        """Return the arguments of a call."""
        names = sorted(values) if self.ordered else list(values)
        arguments = []
        for name in names:
            before, after = (text.replace("{}", name) for text in (self.argument, self.after))
            arguments.append(before + self.spelled(values[name]) + after)
        return self.comma.join(arguments)

    def _plainly(self, value: Any) -> str:
        if isinstance(value, dict):
            members = [
                self.key.replace("{}", k) + self.spelled(v) + self.member_end.replace("{}", k)
                for k, v in value.items()
            ]
            return f"{self.object[0]}{self.comma.join(members)}{self.object[1]}"
        if isinstance(value, list):
            items = [f"{self.item}{self.spelled(v)}{self.item_end}" for v in value]
            return f"{self.array[0]}{self.comma.join(items)}{self.array[1]}"
        if value is None or isinstance(value, bool):
            return self.words[2 if value is None else 1 - value]
        return json.dumps(value)

    def left_out(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield the parts of a schema that this form does not enforce."""
        yield from left_out_of_arguments(schema)
        for name, subschema in (schema.get("properties") or {}).items():
            yield from (f"{name}: {what}" for what in _left_out(subschema, schema, 0))


#: Keywords that no grammar of spelled values enforces.
_UNREAD = """
    minItems maxItems uniqueItems prefixItems contains patternProperties minProperties maxProperties
    propertyNames oneOf
""".split()


def _left_out(subschema: Any, schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    own = resolved(subschema, schema)
    if constants(own):
        return
    yield from (f"{key} is not enforced of a spelled value" for key in narrowing(own))
    yield from (f"{key} is not enforced of a spelled value" for key in _UNREAD if key in own)
    if depth >= MAX_DEPTH:
        yield "values this deep are not enforced"
        return
    inner = [*(own.get("properties") or {}).values(), *(own.get("anyOf") or ())]
    if isinstance(own.get("items"), dict):
        inner.append(own["items"])
    for one in inner:
        yield from _left_out(one, schema, depth + 1)


class _Rules:
    """The grammar lines of one call, whose rules begin with `call`."""

    def __init__(
        self, spelling: SpelledValues, call: str, schema: dict[str, Any], special: SpecialTokens
    ) -> None:
        self.lines: list[str] = []
        self._spelling, self._call, self._schema = spelling, call, schema
        self._quote = special.quoted
        self._up_to = special.up_to
        self._any = ""

    def members(self, subschema: Mapping[str, Any], key: str, end: str, depth: int) -> str:
        """Return a rule of an object's members, in order; those not required may be missing."""
        properties = subschema.get("properties")
        if not isinstance(properties, dict) or not properties:
            closed = (
                subschema.get("additionalProperties") is False
                or subschema.get("maxProperties") == 0
            )
            return '""' if closed else self._free(key, end)
        required = set(subschema.get("required") or ())
        names = sorted(properties) if self._spelling.ordered else list(properties)
        first, more = '""', '""'
        for name in reversed(names):
            one = f"{self._quote(key.replace('{}', name))} {self.value(properties[name], depth)}"
            one = self._new(f"{one} {self._quote(end.replace('{}', name))}" if end else one)
            comma = self._quote(self._spelling.comma)
            comma = f"{comma} " if self._spelling.comma else ""
            must = name in required
            first = self._new(f"{one} {more}" if must else f"{one} {more} | {first}")
            more = self._new(f"{comma}{one} {more}" if must else f"({comma}{one})? {more}")
        return first

    def _free(self, key: str, end: str) -> str:
        """Return a rule of members of any names."""
        parts = [*self._named(key), self.any(), *(self._named(end) if end else ())]
        return f"({self._listed(self._new(' '.join(parts)))})?"

    def _named(self, text: str) -> Iterator[str]:
        """Yield the parts of a text with any name in it."""
        before, hole, after = text.partition("{}")
        for part in (self._quote(before), "NAME" if hole else '""', self._quote(after)):
            if part != '""':
                yield part

    def _listed(self, one: str) -> str:
        comma = self._spelling.comma
        return f"{one} ({self._quote(comma)} {one})*" if comma else f"{one}+"

    def value(self, subschema: Any, depth: int) -> str:
        """Return a rule of the values that a schema describes."""
        own = resolved(subschema, self._schema)
        if depth >= MAX_DEPTH:
            return self.any()
        if chosen := constants(own):
            return self._new(
                " | ".join(self._quote(self._spelling.spelled(value)) for value in chosen)
            )
        several = own.get("anyOf") or own.get("oneOf")
        if isinstance(several, list) and several:
            return self._new(" | ".join(self.value(one, depth + 1) for one in several))
        kinds = own.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if kinds == [None]:
            kinds = ["object"] if "properties" in own else ["array"] if "items" in own else []
        if not kinds:
            return self.any()
        return self._new(" | ".join(self._kind(str(kind), own, depth) for kind in kinds))

    def _kind(self, kind: str, own: dict[str, Any], depth: int) -> str:
        """Return a rule's body of values of one type."""
        if kind == "string":
            return self._text()
        body, end = self._plain(kind, own, depth), self._quote(self._spelling.value_end)
        return body if end == '""' else f"({body}) {end}"

    def _plain(self, kind: str, own: dict[str, Any], depth: int) -> str:
        spelling = self._spelling
        if kind == "object":
            opens, closes = map(self._quote, spelling.object)
            inner = self.members(own, spelling.key, spelling.member_end, depth + 1)
            made = " ".join(part for part in (opens, inner, closes) if part != '""') or '""'
            # templates in Python's form write some objects as JSON
            return f"{made} | {self._json(own)}" if spelling.text is None else made
        if kind == "array":
            items = own.get("items")
            item = self.value(items if isinstance(items, dict) else {}, depth + 1)
            return self._array(item)
        if kind == "boolean":
            return " | ".join(map(self._quote, spelling.words[:2]))
        if kind == "null":
            return self._quote(spelling.words[2])
        if kind == "number" or kind == "integer":
            return self._json({k: v for k, v in own.items() if k in _OF_NUMBERS} | {"type": kind})
        return self.any()

    def _json(self, schema: dict[str, Any]) -> str:
        whole: dict[str, Any] = {
            key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema
        }
        options = {"x-guidance": grammar_options(strict=False)}
        return f"%json {json.dumps({**for_llguidance({**whole, **schema}), **options})}"

    def _array(self, item: str) -> str:
        spelling = self._spelling
        around = (self._quote(spelling.item), item, self._quote(spelling.item_end))
        one = self._new(" ".join(part for part in around if part != '""'))
        opens, closes = map(self._quote, spelling.array)
        parts = (opens, f"({self._listed(one)})?", closes)
        return " ".join(part for part in parts if part != '""')

    def _text(self) -> str:
        if self._spelling.text is None:
            return _PYTHON_TEXT
        opens, closes = self._spelling.text
        rule = f"{self._call}_text"
        self.lines += [line for line in self._up_to(rule, closes) if line not in self.lines]
        return f"{self._quote(opens)} {rule}" if opens else rule

    def any(self) -> str:
        """Return a rule of any value."""
        if not self._any:
            self._any = f"{self._call}_any"
            kinds = [self._kind(kind, {}, MAX_DEPTH) for kind in (*_SCALARS, "array", "object")]
            self.lines.append(f"{self._any}: {' | '.join(kinds)}")
        return self._any

    def _new(self, body: str) -> str:
        if re.fullmatch(r'[a-z_0-9]+|""', body):
            return body
        name = f"{self._call}_{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name


_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def _python(text: str) -> str:
    """Return a text as Python quotes it, with the escapes that the grammar allows."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + "'"
