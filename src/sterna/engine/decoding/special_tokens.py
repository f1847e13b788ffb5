"""`SpecialTokens`: texts in grammars, with special tokens as ids."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from sterna.engine.decoding.lark_terminals import as_terminal, nested

__all__ = ["ID", "INDEX", "SpecialTokens", "quoted"]

#: Holes in the text around a call: an id that the model makes up, of the length that Mistral's
#: templates demand, and the number of the call.
ID, INDEX = "\ue000", "\ue001"
_HOLES = {ID: "/[A-Za-z0-9]{9}/", INDEX: "/[0-9]{1,3}/"}
#: Begins all of MiniMax M3's marks: the lexer must take it as one piece everywhere.
_SHARED = ("]<]minimax[>[",)


class SpecialTokens:
    """Special tokens such as <|im_end|>, which a grammar can only match by their ids.

    ids: ids of special tokens by their text. ends: ids that end an answer.
    """

    def __init__(self, ids: Mapping[str, int], ends: Collection[int] = ()) -> None:
        self._ids, self._ends = ids, ends
        longest_first = sorted(map(re.escape, {*ids, *_HOLES, *_SHARED}), key=len, reverse=True)
        self._any = re.compile(f"({'|'.join(longest_first)})")

    def in_grammar(self, text: str) -> str:
        """Return a text as a grammar writes it, with special tokens by id; empty for empty."""
        return " ".join(map(self._one, filter(None, self._any.split(text))))

    def quoted(self, text: str) -> str:
        """Return a text as `in_grammar` does; the empty literal for the empty text."""
        return self.in_grammar(text) or '""'

    def without_end(self, text: str) -> str:
        """Return a text without end tokens after it."""
        for mark, id in self._ids.items():
            if id in self._ends and text.endswith(mark):
                return self.without_end(text.removesuffix(mark))
        return text

    def up_to(self, rule: str, mark: str) -> list[str]:
        """Return grammar lines: the rule is any TEXT up to the first `mark`."""
        first, *rest = [part for part in self._any.split(mark) if part]
        if first in self._ids:
            return [f"{rule}: TEXT {self.in_grammar(mark)}"]
        if not rest:
            return [f"{rule}[lazy]: TEXT {quoted(mark)}"]
        behind = self.in_grammar("".join(rest))
        return [f"{rule}: {rule}_start {behind}", f"{rule}_start[lazy]: TEXT {quoted(first)}"]

    def after_lark(self, lark: str, mark: str) -> str:
        """Return a part of a rule: a text of a grammar, and the mark that ends it.

        A grammar without recursion ends with the first mark behind which it may; another one's
        terminals may not contain the mark's begin.
        """
        first, *rest = [part for part in self._any.split(mark) if part]
        made = None if first in self._ids else as_terminal(lark)
        if made is None:
            return f"{nested(lark)} {self.in_grammar(mark)}"
        lines, start = made
        inner = nested(f"start[lazy]: {start} {quoted(first)}\n{lines}")
        return " ".join(filter(None, (inner, self.in_grammar("".join(rest)))))

    def _one(self, part: str) -> str:
        if part in _HOLES:
            return _HOLES[part]
        return f"<[{self._ids[part]}]>" if part in self._ids else quoted(part)


def quoted(text: str) -> str:
    """Return a text as a grammar's string literal."""
    return json.dumps(text, ensure_ascii=False)
