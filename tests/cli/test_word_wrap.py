"""Lines of streamed answers, broken between words."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from sterna.cli.word_wrap import WordWrap


def wrapped(text: str, columns: int, pieces: int = 1) -> str:
    """The text as it is printed, fed in pieces of so many characters."""
    wrap = WordWrap(lambda: columns)
    fed = [wrap.feed(text[i : i + pieces]) for i in range(0, len(text), pieces)]
    return "".join([*fed, wrap.end()])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("the quick brown fox jumps", ["the quick", "brown fox", "jumps"]),
        ("exactly te\nnext", ["exactly te", "next"]),
        ("exactly te next", ["exactly te", "next"]),
        ("one  \n\n  two", ["one  ", "", "  two"]),
        ("a https://example.org/long/path b c", ["a", "https://example.org/long/path", "b c"]),
        ("- one two three\n  - four five", ["- one two", "  three", "  - four", "    five"]),
        ("12. one two three", ["12. one", "    two", "    three"]),
        ("> said by one of them", ["> said by", "  one of", "  them"]),
        ("| a table | stays as it is |\nx", ["| a table | stays as it is |", "x"]),
        ("    code by = indent\nx", ["    code by = indent", "x"]),
        ("```py\nfor x in range(10):\n    pass  # a\n```\nthen again words",
         ["```py", "for x in range(10):", "    pass  # a", "```", "then again", "words"]),
        ("~~~~\n``` and words in it\n~~~\n~~~~\nwords behind it",
         ["~~~~", "``` and words in it", "~~~", "~~~~", "words", "behind it"]),
        ("中文没有空格，所以在字之间换行。", ["中文没有空", "格，所以在", "字之间换", "行。"]),
        ("一二三四五、六", ["一二三四", "五、六"]),
        ("한국어는 띄어쓰기가 있다", ["한국어는", "띄어쓰기가", "있다"]),
        ("e\u0301a\u0301 12345 ab", ["e\u0301a\u0301 12345", "ab"]),
        ("", [""]),
    ],
)  # fmt: skip
def test_lines(text: str, lines: list[str]) -> None:
    for pieces in (1, 2, 3, 100):
        assert wrapped(text, 10, pieces).split("\n") == lines


def test_a_word_is_held_back_until_it_ends() -> None:
    wrap = WordWrap(lambda: 20)
    assert wrap.feed("Hel") == ""
    assert wrap.feed("lo wor") == "Hello"
    assert wrap.feed("ld\n``") == " world\n"
    assert wrap.feed("`\nx = 1") == "```\nx = 1"  # code comes as it is
    assert wrap.end() == ""
    assert wrap.feed("after an end, ") == "after an end,"  # which closed the block


def test_a_terminal_that_changes() -> None:
    columns = [30]
    wrap = WordWrap(lambda: columns[0])
    said = wrap.feed("one two three four five ")
    columns[0] = 12
    said += wrap.feed("six seven ")
    columns[0] = 0  # it is gone: nothing is held back, and nothing is broken
    said += wrap.feed("eight nine ten eleven twelve")
    assert said == "one two three four five\nsix seven eight nine ten eleven twelve"


@settings(max_examples=100)
@given(
    text=st.text(st.sampled_from("aaab,`|-~中文。가é\u0301👩    \n"), max_size=200),
    columns=st.integers(1, 40),
    pieces=st.integers(1, 9),
)
def test_nothing_is_lost(text: str, columns: int, pieces: int) -> None:
    """However the text is cut into pieces; only spaces at breaks are replaced."""
    whole = wrapped(text, columns)
    assert wrapped(text, columns, pieces) == whole
    assert re.sub(r"\s", "", whole) == re.sub(r"\s", "", text)
    assert wrapped(text, 0, pieces) == text


@settings(max_examples=50)
@given(words=st.lists(st.text("abc", min_size=1, max_size=10), max_size=60))
def test_no_line_is_too_wide(words: list[str]) -> None:
    lines = wrapped(" ".join(words), 10).split("\n")
    assert all(get_cwidth(line) <= 10 for line in lines)
    for line, following in pairwise(lines):  # and none ends too early
        assert len(line) + 1 + len(following.split()[0]) > 10
