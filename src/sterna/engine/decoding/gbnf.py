"""GBNF, the grammars of llama.cpp, as llguidance's Lark.

llguidance's own converter reads the rules. It is given texts, classes and names in forms that it
and Lark's lexer take without a change of meaning: it would write `\\u0041` as `\\u41`, keep `\\[`
in texts, and let `.` match no line break, and two names may become one.
"""

from __future__ import annotations

import re

from sterna.engine.decoding.lark_terminals import as_terminal
from sterna.errors import RequestError, shown

__all__ = ["is_gbnf", "lark_of_gbnf"]

_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<text>"(?:\\.|[^"\\])*")|(?P<chars>\[(?:\\.|[^\]\\])*\])"""
    r"""|(?P<token>!?<[^>\s]*>)|(?P<name>[A-Za-z0-9_-]+)(?!\})|(?P<count>\{[^}]*\})|(?P<any>\.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = {char: "\\" + letter for letter, char in _LETTERS.items()}
#: Characters that Rust's classes or the converter take for more than themselves.
_SPECIAL = frozenset("\\[]^&~-/")


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar is in GBNF, not in Lark."""
    return _RULE.search(grammar) is not None


def lark_of_gbnf(grammar: str) -> str:
    """Return a grammar in Lark. RequestError for one that is no GBNF."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    names: dict[str, str] = {"root": "root"}

    def plain(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return ""
        if match["text"] is not None:
            return '"' + "".join(map(_in_text, _chars(match["text"][1:-1]))) + '"'
        if match["chars"] is not None:
            return _class(match["chars"][1:-1])
        if match["token"] is not None:
            raise _refused("tokens such as <[1]> are not read")
        if match["any"] is not None:
            return "[\\x00-\U0010ffff]"
        if match["name"] is None:
            return match[0]
        return names.setdefault(match["name"], f"rule-{len(names)}")

    try:
        lark: str = gbnf_to_lark(_TOKEN.sub(plain, grammar))
    except RequestError:
        raise
    except Exception as error:  # it raises plain ones
        said = str(error)
        for name, other in names.items():
            said = said.replace(f"'{other}'", f"'{name}'")
        raise _refused(said) from None
    if (made := as_terminal(lark)) is None:
        return lark
    return f"%llguidance {{}}\nstart: {made[1]}\n{made[0]}"


def _refused(why: str) -> RequestError:
    return RequestError(f"grammar: must be GBNF that llguidance can read, but {shown(why)}")


def _chars(text: str) -> list[str]:
    """Return the characters of a text or class, an escaped one with its backslash."""
    made = []
    for x, u, wide, letter, char in _ESCAPE.findall(text):
        if code := x or u or wide:
            if int(code, 16) > 0x10FFFF:
                raise _refused(f"{code} is no character")
            made.append("\\" + chr(int(code, 16)))
        elif letter:
            made.append("\\" + _LETTERS.get(letter, letter))
        else:
            made.append(char)
    return made


def _in_text(char: str) -> str:
    """Return a character as a text of Lark has it."""
    char = char[-1]
    if char in '"\\':
        return "\\" + char
    if char < " " or char == "\x7f":
        return _WRITTEN.get(char, f"\\x{ord(char):02x}")
    return char


def _class(inside: str) -> str:
    """Return a class of characters with nothing but characters and ranges."""
    chars = _chars(inside)
    negated = chars[:1] == ["^"]
    made = ""
    for i, char in enumerate(chars[negated:]):
        between = 0 < i < len(chars) - negated - 1
        if char == "-" and between:
            made += "-"
        elif char[-1] in _SPECIAL or char[-1] < " " or char[-1] == "\x7f":
            made += f"\\x{ord(char[-1]):02x}"
        else:
            made += char[-1]
    return f"[{'^' * negated}{made}]"
