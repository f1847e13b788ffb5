"""Lark grammars without recursion as one terminal, which a lexer need not split.

A lexer takes the longest piece that one terminal matches. Around and within other texts that is too
much: any text would contain the mark that ends it, and within a string the backslash of `\\n`
belongs to two terminals. A single terminal has no such limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["LARK_TOKEN", "as_terminal", "nested"]

#: The tokens of llguidance's Lark that are texts or contain some; the rest stays as it is.
LARK_TOKEN = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<range>"(?:\\.|[^"\\])*"\s*\.\.\s*"(?:\\.|[^"\\])*")
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |%import\s+common\.(?P<imported>\w+)(?:\s*->\s*(?P<alias>\w+))?
    |(?P<options>%llguidance)
    |(?P<refused>%(?:regex|json|import)|@[\w-]+|<[^<>\s]+>|~(?!\s*[0-9]))""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[!?]*_*[a-z][\w-]*")
_ALIAS = re.compile(r"->[ \t]*[\w-]+")
#: A definition of a rule or a terminal, with its priority.
_DEFINITION = re.compile(
    r"^[ \t]*[!?]*([\w-]+)[ \t]*(?:\.[ \t]*-?[0-9]+[ \t]*)?:(?!:)", re.MULTILINE
)
#: Parts that terminals cannot have: those of llguidance's own, and options of rules.
_NO_TERMINAL = re.compile(r"[%@<]|::|^[ \t]*[!?]*[\w-]+[ \t]*[\[{]", re.MULTILINE)


def nested(lark: str) -> str:
    """Return a grammar as part of a rule of another one."""
    return f"%lark {{\n{lark}\n}}"


def as_terminal(lark: str) -> tuple[str, str] | None:
    """Return the lines of a grammar as terminals, and the name of the one for its start.

    None if its rules are recursive, or have parts that terminals cannot have.
    """
    lark = re.sub(r"%llguidance\s*\{\s*\}", "", lark)
    masked = _ALIAS.sub(_blank, LARK_TOKEN.sub(_hidden, lark))
    uses = _uses(masked)
    if _NO_TERMINAL.search(masked) or "start" not in uses or _is_recursive(uses):
        return None
    prefix = "RULE_"
    while prefix in masked:
        prefix += "X"
    parts, at = [], 0
    for match in _NAME.finditer(masked):
        name = match[0].lstrip("!?")
        parts += [lark[at : match.start()], prefix + name.upper() if name in uses else name]
        at = match.end()
    lines = "".join([*parts, lark[at:]])
    return _without_aliases(lines), f"{prefix}START"


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _hidden(match: re.Match[str]) -> str:
    """Hide texts and imports; parts that terminals cannot have stay."""
    return match[0] if match["refused"] or match["options"] else _blank(match)


def _without_aliases(lark: str) -> str:
    parts, at = [], 0
    masked = LARK_TOKEN.sub(_hidden, lark)
    for match in _ALIAS.finditer(masked):
        parts.append(lark[at : match.start()])
        at = match.end()
    return "".join([*parts, lark[at:]])


def _uses(masked: str) -> dict[str, set[str]]:
    """Return the names that each definition uses."""
    definitions = [*_DEFINITION.finditer(masked)]
    ends = [one.start() for one in definitions[1:]] + [len(masked)]
    bodies = {one[1]: masked[one.end() : end] for one, end in zip(definitions, ends, strict=True)}
    return {name: set(re.findall(r"[\w-]+", body)) for name, body in bodies.items()}


def _is_recursive(uses: Mapping[str, set[str]]) -> bool:
    """Whether a definition uses itself, by way of others or at once."""
    left = {name: {use for use in used if use in uses} for name, used in uses.items()}
    while done := {name for name, used in left.items() if not used}:
        left = {name: used - done for name, used in left.items() if name not in done}
    return bool(left)
