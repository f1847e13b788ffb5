"""Lark grammars of a text, rewritten for the text as a JSON or Python string spells it.

A grammar of the raw text `say "hi"` becomes one of `say \\"hi\\"`. Literals and regular expressions
are rewritten one by one, so rules keep their form, recursion included. `RequestError` for syntax
that cannot be rewritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sterna.engine.decoding.lark_terminals import LARK_TOKEN, as_terminal, nested
from sterna.engine.decoding.special_tokens import quoted
from sterna.errors import RequestError, shown

__all__ = ["JSON_STRING", "PYTHON_STRING", "Escapes", "escaped_lark", "string_of"]

#: Lark's common terminals that match characters which strings escape.
_COMMON = {
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*([^*]|\*+[^*\/])*\*+\/",
    "SQL_COMMENT": r"--[^\n]*",
}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_CODE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]{1,8})\})"
)
#: Flags of a group, or of the rest of one.
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
#: Classes that none of the escaped characters belongs to: digits, letters and marks.
_PLAIN_CLASS = re.compile(r"\\(?:[dw]|p(?:[LNM]|\{[LNM][a-z]?\}))")
_SPACES = "\t\n\v\f\r "


@dataclass(frozen=True)
class Escapes:
    """How a string spells its characters.

    table: the characters that it must escape; others are written as they are, apart from control
    characters, which are left out.
    """

    table: Mapping[str, str]

    @cached_property
    def _excluded(self) -> str:
        """The inside of a class of the characters that never stand for themselves."""
        marks = [re.escape(char) for char in self.table if char.isprintable()]
        return "".join(marks) + r"\x00-\x1f\x7f"

    def text(self, text: str) -> str:
        """Return a text as it is written. RequestError for a control character."""
        return "".join(map(self._char, text))

    def _char(self, char: str) -> str:
        if char not in self.table and (char < " " or char == "\x7f"):
            raise _refused(f"the control character {shown(char)}")
        return self.table.get(char, char)

    def literal(self, char: str) -> str:
        """Return a regular expression of one character."""
        written = self._char(char)
        return re.escape(char) if written == char else f"(?-i:{_regex(written)})"

    def any_of(self, group: str, has: Callable[[str], bool]) -> str:
        """Return a regular expression of a class of characters. has: whether it has a character."""
        escaped = [_regex(written) for char, written in self.table.items() if has(char)]
        return "(?:" + "|".join([f"[{group}&&[^{self._excluded}]]", *_scoped(escaped)]) + ")"


JSON_STRING = Escapes(
    {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
PYTHON_STRING = Escapes({"'": "\\'", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def escaped_lark(grammar: str, escapes: Escapes) -> str:
    """Return the grammar of the texts of `grammar` as a string writes them. RequestError."""
    parts, at = [], 0
    while token := LARK_TOKEN.search(grammar, at):
        parts.append(grammar[at : token.start()])
        at = token.end()
        if token["refused"]:
            raise _refused(token["refused"])
        if token["options"]:
            at = _end_of_json(grammar, at)
            parts.append(grammar[token.start() : at])
        elif token["comment"] is None:
            parts.append(_rewritten(token, escapes))
    return "".join([*parts, grammar[at:]])


def string_of(lark: str, escapes: Escapes, quote: str) -> str:
    """Return a part of a rule: the string in quotes whose text a grammar describes."""
    if made := as_terminal(lark):
        lark = f"{made[0]}\nstart: {made[1]}"
    return f"{quoted(quote)} {nested(escaped_lark(lark, escapes))} {quoted(quote)}"


def _rewritten(token: re.Match[str], escapes: Escapes) -> str:
    if token["imported"]:
        regex = _COMMON.get(token["imported"])
        if regex is None:
            return token[0]
        return f"{token['alias'] or token['imported']}: /{_Regex(escapes, regex, '').written()}/"
    if token["range"]:
        first, last = (_value(one) for one in re.findall(r'"(?:\\.|[^"\\])*"', token["range"]))
        if len(first) != 1 or len(last) != 1 or first > last:
            raise _refused(token["range"])
        group = f"{re.escape(first)}-{re.escape(last)}"
        return f"/{_sure(escapes.any_of(f'[{group}]', lambda c: first <= c <= last))}/"
    if token["string"]:
        text = _value(token["string"].removesuffix("i"))
        if token["string"].endswith("i"):
            return f"/(?i:{_sure(''.join(map(escapes.literal, text)))})/"
        return quoted(escapes.text(text))
    regex, _, flags = token["regex"][1:].rpartition("/")
    return f"/{_Regex(escapes, regex, flags).written()}/"


def _value(string: str) -> str:
    """Return the text of a literal: JSON's syntax, with Python's escape of two digits."""
    try:
        return str(json.loads(re.sub(r"(\\\\)|\\x", lambda m: m[1] or r"\u00", string)))
    except ValueError:
        raise _refused(string) from None


def _end_of_json(text: str, at: int) -> int:
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:
        raise _refused(text[at : at + 40]) from None


def _refused(what: str) -> RequestError:
    return RequestError(
        f"grammar: must have syntax that a text in quotes can follow, but has {shown(what)}"
    )


def _regex(written: str) -> str:
    """Return a regular expression of an escaped character."""
    return written.replace("\\", "\\\\")


def _scoped(regexes: list[str]) -> list[str]:
    """Return alternatives that ignore no case: \\N is no line break."""
    return [f"(?-i:{'|'.join(regexes)})"] if regexes else []


def _sure(regex: str) -> str:
    """Return a regular expression without a bare slash, which would end it in Lark."""
    return re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", regex, flags=re.DOTALL)


class _Regex:
    """Rewrites one regular expression of Rust's syntax."""

    def __init__(self, escapes: Escapes, pattern: str, flags: str) -> None:
        self._escapes, self._pattern, self._at = escapes, pattern, 0
        self._flags = flags.replace("u", "")
        if set(self._flags) - set("ims"):
            raise _refused(f"the flags {flags}")
        self._dotall = ["s" in self._flags]

    def written(self) -> str:
        """Return the whole regular expression."""
        made = "".join(self._parts())
        return f"(?{self._flags}){made}" if self._flags else made

    def _parts(self) -> Iterator[str]:
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == "\\":
                yield self._escape()
            elif char == "[":
                yield self._class()
            elif char == "(":
                yield self._group()
            elif char == ".":
                self._at += 1
                yield self._dot()
            elif char == "{":
                end = self._pattern.find("}", self._at) + 1 or len(self._pattern)
                yield self._pattern[self._at : end]
                self._at = end
            else:
                self._at += 1
                if char == ")" and len(self._dotall) > 1:
                    self._dotall.pop()
                yield char if char in ")|*+?^$" else _sure(self._escapes.literal(char))

    def _dot(self) -> str:
        if self._dotall[-1]:
            return self._escapes.any_of(r"[\s\S]", lambda c: True)
        return self._escapes.any_of(r"[^\n]", lambda c: c != "\n")

    def _group(self) -> str:
        flags = _FLAGS.match(self._pattern, self._at)
        if flags is None:
            end = self._at + 1
            if self._pattern.startswith("(?", self._at):
                end = self._pattern.find(">", self._at) + 1 or len(self._pattern)
            text = self._pattern[self._at : end]
            if re.match(r"\(\?(P?<[A-Za-z_]|$)", text) is None and text != "(":
                raise _refused(text[:16])
            self._at = end
            self._dotall.append(self._dotall[-1])
            return text
        on, off, ends = flags[1], flags[2] or "", flags[3]
        if set(on + off) - set("imsU"):
            raise _refused(flags[0])
        self._at = flags.end()
        dotall = (self._dotall[-1] or "s" in on) and "s" not in off
        if ends == ":":
            self._dotall.append(dotall)
        else:
            self._dotall[-1] = dotall
        return flags[0]

    def _escape(self) -> str:
        """Rewrite an escape outside of a class."""
        text, char, has = self._one()
        if char is not None:
            return _sure(self._escapes.literal(char))
        return text if has is None else self._escapes.any_of(f"[{text}]", has)

    def _one(self) -> tuple[str, str | None, Callable[[str], bool] | None]:
        """Read an escape: (its text, the character, which escaped characters a class has)."""
        if plain := _PLAIN_CLASS.match(self._pattern, self._at):
            self._at = plain.end()
            return plain[0], None, None
        if code := _CODE.match(self._pattern, self._at):
            self._at = code.end()
            number = int(next(filter(None, code.groups())), 16)
            return code[0], chr(number) if number < 0x110000 else "\x7f", None
        text = self._pattern[self._at : self._at + 2]
        self._at += 2
        letter = text[1:]
        if letter in _LETTERS or not letter.isalnum():
            return text, _LETTERS.get(letter, letter), None
        if letter in "DW":
            return text, None, lambda c: True
        if letter in "sS":
            return text, None, lambda c: (c in _SPACES) == (letter == "s")
        if letter in "bBAz":
            return text, None, None
        raise _refused(self._pattern[self._at - 2 : self._at + 8])

    def _class(self) -> str:
        """Rewrite a class of characters."""
        start, self._at = self._at, self._at + 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        tests: list[Callable[[str], bool]] = []
        first = True
        while first or not self._pattern.startswith("]", self._at):
            tests.append(self._item())
            first = False
        self._at += 1
        group = self._pattern[start : self._at]
        return _sure(
            self._escapes.any_of(group, lambda c: any(test(c) for test in tests) != negated)
        )

    def _item(self) -> Callable[[str], bool]:
        """Read an item of a class, and return whether it has a character."""
        low, has = self._member()
        if low is None:
            return has
        is_range = self._pattern.startswith("-", self._at)
        if not is_range or self._pattern.startswith("-]", self._at):
            return lambda c: c == low
        self._at += 1
        high, _ = self._member()
        if high is None:
            raise _refused(self._pattern)
        return lambda c: low <= c <= high

    def _member(self) -> tuple[str | None, Callable[[str], bool]]:
        """Read a character of a class, or a class that is part of one."""
        rest = self._pattern[self._at : self._at + 2]
        if not rest or rest[0] == "[" or rest in ("&&", "--", "~~"):
            raise _refused(self._pattern)  # classes within classes
        if rest[0] != "\\":
            self._at += 1
            return rest[0], lambda c: c == rest[0]
        text, char, has = self._one()
        if char is None and text[1:] in ("b", "B", "A", "z"):
            raise _refused(self._pattern)
        return char, has or (lambda c: False)
