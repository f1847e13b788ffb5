"""Regular expressions of JSON schemas, which are JavaScript's (ECMA-262), in Rust's spelling.

Where both spell something alike and mean another thing, it is written out, or refused.
"""

from __future__ import annotations

import re

__all__ = ["CONTROL", "in_rust", "unfit"]

#: Characters that JSON writes as \u and a number. llguidance drops them where it may not write so,
#: and would allow "ab" for "a\u0000b".
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
#: What a pattern may write for one of them, and its classes of all characters but some.
_ESCAPED_CONTROL = re.compile(
    CONTROL.pattern + r"|\\(?:[xu]\{|[0ave]|c.|(?:x|u00)(?:0[0-7bBe-fE-F]|1.|7[fF]))"
)
_NEGATED = re.compile(r"\[\^(?:\\.|[^\]\\])*\]")
#: An escape, or a character that has a meaning of its own somewhere.
_SIGN = re.compile(r"\\.|[\[\].&~]", re.DOTALL)
#: JavaScript's white space, and its ends of lines, which "." does not match.
_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_LINE_ENDS = r"\n\r\u2028\u2029"


def unfit(pattern: str) -> str | None:
    """Why a pattern cannot be enforced, if that is so and llguidance would not say it."""
    if _ESCAPED_CONTROL.search(_NEGATED.sub("", pattern)):
        return "control characters must not be in patterns"
    if "--" in "".join(_classes(pattern)):
        return "-- must not be in a pattern's class, where it subtracts another in Rust"
    if re.search(r"\(\?(?![:=!<])|\(\?<(?![=!]?[A-Za-z_])", pattern):
        return "patterns must have no flags, which JavaScript does not know"
    return None


def _classes(pattern: str) -> list[str]:
    return re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]", pattern, re.DOTALL)


def in_rust(pattern: str) -> str:
    """The pattern, with the same matches."""
    inside = False

    def sign(found: re.Match[str]) -> str:
        nonlocal inside
        text = found[0]
        if text in (r"\s", r"\S"):
            return f"[{_SPACE}]" if text[1] == "s" else f"[^{_SPACE}]"
        if text == "." and not inside:
            return f"[^{_LINE_ENDS}]"
        if text in "[]" and (text == "]") == inside:
            inside = not inside
            return text
        # In a class, Rust's has operators and classes where JavaScript's has characters.
        return "\\" + text if inside and text in "[&~" else text

    return _SIGN.sub(sign, pattern)
