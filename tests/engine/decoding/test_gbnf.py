"""GBNF: llama.cpp's grammars mean here what they mean there."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from test_escaped_lark import accepts

from sterna import LLM
from sterna.cli import main
from sterna.errors import RequestError

#: JSON, in the manner of llama.cpp's own grammar of it.
JSON = r"""
root   ::= object  # a comment
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
NAMES = """root ::= fooBar foo-bar foo_bar start START 1st
fooBar ::= "1"\nfoo-bar ::= "2"\nfoo_bar ::= "3"\nstart ::= "4"\nSTART ::= "5"\n1st ::= "6"
"""
CASES = (
    ('root ::= "yes" | "no"', ("yes", "no"), ("y", "yesno", "")),
    (r'root ::= "\u0041\U0001F600\x42\[\]\t\"\\"', ('A\U0001f600B[]\t"\\',), ("A",)),
    ("root ::= .", ("a", "\n", "é", "\U0001f600"), ("ab", "")),
    (r"root ::= [a&&b~\-\]\[/^.] [^\n-] [+-] [\u0041-\u0043]",
     ("&x+B", "]x-A", "-x+C", "/.+A", "^a-A"), ("cx+B", "a-+B", "a\n+B", "ax+D")),
    (NAMES, ("123456",), ("1",)),
    ('root ::= a b\na ::= [a-z]+\nb ::= "x"', ("abx", "xx"), ("x", "ab")),
    ('root ::= "a" root | "b"', ("aab", "b"), ("a",)),
    ('root ::= "a"{2,3} ("b" "c"?)* # c\n', ("aa", "aaabcb"), ("a", "aab ")),
    ('root ::= ( "1" |\n "2" ) "3"{2}\n', ("133", "233"), ("3", "13")),
    (JSON, ('{"a": [1, -2.5e3, "x\\n"], "b": null}', "{}"), ("{a}", "[1]", '{"a":')),
)  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


@pytest.mark.parametrize("case", CASES, ids=[case[0].split("\n")[0][:24] for case in CASES])
def test_grammars(llm: LLM, case: tuple[str, tuple[str, ...], tuple[str, ...]]) -> None:
    grammar, good, bad = case
    made = llm.constraints.grammar(grammar)
    assert made.grammar == llm.constraints.gbnf(grammar).grammar
    for text in good:
        assert accepts(llm, made, text), text
    for text in bad:
        assert not accepts(llm, made, text), text


@pytest.mark.parametrize(
    "grammar",
    ["root ::= a", 'x ::= "a"', 'root ::= "a', "root ::= [a", "root ::= <think>", 'root ::= "a" ]',
     r'root ::= "\UFFFFFFFF"', "root ::= ("],
)  # fmt: skip
def test_what_is_refused(llm: LLM, grammar: str) -> None:
    with pytest.raises(RequestError, match="grammar: must be"):
        llm.constraints.grammar(grammar)


def test_on_the_command_line(tmp_path: str) -> None:
    for text in ('root ::= "yes" | "no"', 'start: "yes" | "no"'):
        for given in (text, f"{tmp_path}/grammar"):
            with open(f"{tmp_path}/grammar", "w") as file:
                file.write(text)
            done = CliRunner().invoke(
                main, ["generate", "--model", "nano", "a", "--grammar", given, "--max-tokens", "9"]
            )
            assert done.exit_code == 0, done.stderr
            assert done.stdout.strip() in ("yes", "no")
