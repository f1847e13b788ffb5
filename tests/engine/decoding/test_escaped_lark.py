"""Grammars of a text within quotes: they allow what JSON or Python writes for the texts of the
grammar, and nothing else."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from sterna import LLM
from sterna.engine.decoding.constraints import Constraint
from sterna.engine.decoding.escaped_lark import JSON_STRING, PYTHON_STRING, Escapes, string_of
from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.errors import RequestError

LETTERS = "a\"\\\n\t/nN'b1 é\r"
REGEXES = (
    r".+", r'[^"]+', r'["\\]', r"\S+", r"\s+", r"\W", r"(?s:.)+", '(?i:"N\n)', r"[\n\t]+",
    r'[a-z/"-]+', r"\x22|\u{5c}", '(a|"){2,3}', r"(?i)\\n", r"[^\n]*\n", r"\/\"", "[']+x?",
    r"[!-~]+", r"\D", r'\p{L}"', r"[\s\d]{2}", r"(?s)a.|(?-s:b.)", "[]a]+", r"[^\W\d]+",
)  # fmt: skip
#: Rules, recursion, ranges, options, imports and comments.
LINES = r"""%llguidance {}
start: "<\"" block+ ">"  // "not a literal
block: LF | word | "(" block* ")" | "x".."z"
word[capture="w"]: /[a-c"']+/ "N\x5c"i?
%import common.LF
"""


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


def accepts(llm: LLM, constraint: Constraint, text: str) -> bool:
    """Whether a text may be the whole answer."""
    matcher, tokens = constraint.matcher(), llm.tokenizer.encode(text, add_special=False)
    if matcher.valid(tokens) < len(tokens):
        return False
    matcher.follow(np.array(tokens, np.int32))
    if matcher.ended:
        return True
    (mask,) = matcher.masks([], llm.tokenizer.eos_ids)
    return all(mask[end // 32] >> end % 32 & 1 for end in llm.tokenizer.eos_ids)


def pythonic(text: str) -> str:
    """A text as templates in Python's form write it."""
    return SpelledValues("{}=").spelled(text)


def spelled(text: str, escapes: Escapes) -> str:
    return json.dumps(text, ensure_ascii=False) if escapes is JSON_STRING else pythonic(text)


def in_lark(regex: str) -> str:
    return re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", regex, flags=re.DOTALL)


@pytest.mark.parametrize("escapes", [JSON_STRING, PYTHON_STRING], ids=["json", "python"])
def test_regexes(llm: LLM, escapes: Escapes) -> None:
    """By texts at random, beside the same expression without quotes."""
    rng, quote = random.Random(1), '"' if escapes is JSON_STRING else "'"
    for regex in REGEXES:
        lark = f"start: T?\nT: /{in_lark(regex)}/"
        raw = llm.constraints.lark(f"%llguidance {{}}\n{lark}")
        inner = string_of(lark, escapes, quote)
        within = llm.constraints.lark(f"%llguidance {{}}\nstart: {inner}")
        seen = set()
        texts = {"".join(rng.choices(LETTERS, k=rng.randint(0, 4))): None for _ in range(90)}
        for text in texts:  # each once, in the order of their draws
            matches = accepts(llm, raw, text)
            seen.add(matches)
            assert accepts(llm, within, spelled(text, escapes)) == matches, (regex, text)
        assert seen == {True, False} or regex == r"(?s:.)+"


def test_grammars(llm: LLM) -> None:
    raw = llm.constraints.lark(LINES)
    within = llm.constraints.lark(f"start: {string_of(LINES, JSON_STRING, chr(34))}")
    for text, good in (
        ('<"\n>', True), ('<"(a(\n)x)>', True), ("<\"a'\"n\\z>", True), ('<"aN\\b>', True),
        ("<\n>", False), ('<"(a>', False), ('<"w>', False), ('<"an>', False),
    ):  # fmt: skip
        assert accepts(llm, raw, text) == good, text
        assert accepts(llm, within, json.dumps(text)) == good, text
        assert not accepts(llm, within, f'"{text}"'), text


@pytest.mark.parametrize(
    "lark",
    [
        "start: ~/a/", "start: @other", "start: <|end|>", 'start: %json {"type": "null"}',
        "start: /(?x)a b/", r"start: /\p{Po}/", "start: /[a[b]]/", "start: /[a&&b]/",
        'start: "\x00"', r'start: "\u0001"', r"start: /\x01/", r"start: /(?=a)/",
        "%import other.LF\nstart: LF",
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_refused(lark: str) -> None:
    with pytest.raises(RequestError, match="must have syntax that a text in quotes can follow"):
        string_of(lark, JSON_STRING, '"')
