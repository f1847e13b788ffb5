"""Regular expressions of JSON schemas, which are JavaScript's (ECMA-262), in Rust's syntax.

Syntax that means something else in Rust is rewritten, or refused.
"""

from __future__ import annotations

import re

__all__ = ["CONTROL", "to_rust", "unsupported"]

#: Characters that JSON writes as \u and a number. llguidance drops them as this is not allowed, and
#: would accept "ab" for "a\u0000b".
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
#: Ways to write such a character in a pattern, and negated classes.
_ESCAPED_CONTROL = re.compile(
    CONTROL.pattern + r"|\\(?:[xu]\{|[0ave]|c.|(?:x|u00)(?:0[0-7bBe-fE-F]|1.|7[fF]))"
)
_NEGATED = re.compile(r"\[\^(?:\\.|[^\]\\])*\]")
#: An escape, or a character that is special in some place.
_SIGN = re.compile(r"\\.|[\[\].&~]", re.DOTALL)
#: JavaScript's white space, and its line ends, which "." does not match.
_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_LINE_ENDS = r"\n\r\u2028\u2029"


def unsupported(pattern: str) -> str | None:
    """Return why a pattern cannot be enforced, if llguidance would not say so itself."""
    if _ESCAPED_CONTROL.search(_NEGATED.sub("", pattern)):
        return "control characters must not be in patterns"
    if "--" in "".join(_classes(pattern)):
        return "-- must not be in a pattern's class, where it subtracts another in Rust"
    if re.search(r"\(\?(?![:=!<])|\(\?<(?![=!]?[A-Za-z_])", pattern):
        return "patterns must have no flags, which JavaScript does not know"
    return None


def _classes(pattern: str) -> list[str]:
    return re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]", pattern, re.DOTALL)


def to_rust(pattern: str) -> str:
    """Return a pattern of Rust with the same matches."""
    inside = False

    def sign(match: re.Match[str]) -> str:
        nonlocal inside
        text = match[0]
        if text in (r"\s", r"\S"):
            return f"[{_SPACE}]" if text[1] == "s" else f"[^{_SPACE}]"
        if text == "." and not inside:
            return f"[^{_LINE_ENDS}]"
        if text in "[]" and (text == "]") == inside:
            inside = not inside
            return text
        # Within a class, Rust has operators and classes where JavaScript has characters.
        return "\\" + text if inside and text in "[&~" else text

    return _SIGN.sub(sign, pattern)
