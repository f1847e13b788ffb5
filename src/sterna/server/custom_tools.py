"""Custom tools of OpenAI's protocols, whose input is a text instead of JSON.

The model sees a function with one text, by which its calls are parsed like all others. An answer's
calls of such tools become `custom` calls again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from sterna.engine.decoding.grammars import TextArgument
from sterna.llm.tool_choice import ToolChoice
from sterna.outputs import AnswerParser, Completion, Delta
from sterna.server.errors import invalid

__all__ = [
    "CUSTOM",
    "CustomCallParser",
    "arguments_of",
    "function_of_custom",
    "parser_of",
    "text_argument",
]

#: The kind of deltas of custom calls.
CUSTOM = "custom_tool_calls"
#: The function's only argument.
ARGUMENT = "input"
_PARAMETERS = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string"}},
    "required": [ARGUMENT],
    "additionalProperties": False,
}
_BEGIN = re.compile(rf'\s*\{{\s*"{ARGUMENT}"\s*:\s*"')
#: The escapes in a JSON string. Characters beyond 16 bits have two.
_ESCAPE = re.compile(
    r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])'
)
_SURROGATE = re.compile("[\ud800-\udfff]")
#: A character of two escapes of which the second has not come yet.
_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


def function_of_custom(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that the model sees. tool: with the fields of a custom tool."""
    grammar = _grammar(tool)
    about = str(tool.get("description") or "")
    if grammar:
        about += f"\n\nThe input matches this grammar ({grammar[0]}):\n{grammar[1]}"
    function = {"name": tool.get("name"), "description": about.strip(), "parameters": _PARAMETERS}
    return {key: value for key, value in function.items() if value}


def text_argument(tool: Mapping[str, Any], where: str) -> TextArgument | None:
    """Return the function's argument with the grammar of a tool's `format`; None for any text.

    ApiError 400.
    """
    form = tool.get("format")
    if form is not None and (not isinstance(form, dict) or form.get("type") not in _KINDS):
        raise invalid(f"{where}.format", "must have the type text or grammar", form)
    if form is None or form["type"] == "text":
        return None
    grammar = _grammar(tool)
    if grammar is None:
        raise invalid(
            f"{where}.format", "must have a definition, and a syntax of lark or regex", form
        )
    syntax, text = grammar
    if syntax == "lark":
        return TextArgument(ARGUMENT, text)
    slashes = re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", text, flags=re.DOTALL)
    return TextArgument(ARGUMENT, f"start: /{slashes}/")


_KINDS = ("text", "grammar")


def _grammar(tool: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the syntax and the definition of a tool's grammar; None for none that is valid."""
    form = tool.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return None
    grammar = form.get("grammar", form)  # chat has an object more than responses
    grammar = grammar if isinstance(grammar, dict) else {}
    syntax, text = grammar.get("syntax"), grammar.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(text, str) or not text:
        return None
    return syntax, text


def arguments_of(text: str) -> str:
    """Return the arguments of the function's call with a text, as JSON."""
    return json.dumps({ARGUMENT: text}, ensure_ascii=False)


def parser_of(done: Completion, tools: ToolChoice) -> AnswerParser:
    """Make a parser of an answer, in which calls of custom tools are custom."""
    return CustomCallParser(done.parser(), tools.texts) if tools.texts else done.parser()


class CustomCallParser:
    """Parses an answer in which calls of some tools are custom.

    parser: parser of the answer. names: names of the custom tools.
    """

    def __init__(self, parser: AnswerParser, names: Collection[str]) -> None:
        self._parser, self._names = parser, names
        self._text: _InputReader | None = None  # of the custom call that is being read

    def finish_reason(self, reason: str) -> str:
        """Return the finish reason of the answer, whose text ended for a reason."""
        return self._parser.finish_reason(reason)

    @property
    def unread(self) -> int:
        """The number of characters that need more text before they can be parsed."""
        return self._parser.unread

    def feed(self, text: str) -> list[Delta]:
        """Add text; return all deltas that are certain by now."""
        return self._with_custom(self._parser.feed(text))

    def end(self) -> list[Delta]:
        """Return the remaining deltas at the end of the text."""
        return self._with_custom(self._parser.end())

    def message(self, text: str) -> dict[str, Any]:
        """Parse a whole answer into a chat message."""
        message = self._parser.message(text)
        calls = message.get("tool_calls")
        if calls:
            message["tool_calls"] = [self._custom(call) for call in calls]
        return message

    def _custom(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        if function["name"] not in self._names:
            return call
        said = {"name": function["name"], "input": _InputReader().read(function["arguments"])}
        return {"id": call["id"], "type": "custom", "custom": said}

    def _with_custom(self, deltas: list[Delta]) -> list[Delta]:
        renamed = []
        for delta in deltas:
            if delta.kind != "tool_calls":
                renamed.append(delta)
                continue
            if delta.id:
                self._text = _InputReader() if delta.name in self._names else None
            if self._text is None:
                renamed.append(delta)
                continue
            text = self._text.read(delta.text)
            if text or delta.id:
                renamed.append(Delta(CUSTOM, text, delta.index, delta.id, delta.name))
        return renamed


class _InputReader:
    """Reads the text in a function's arguments as they come."""

    def __init__(self) -> None:
        self._held, self._within, self._done = "", False, False

    def read(self, arguments: str) -> str:
        """Add arguments; return the part of the text that they contain."""
        self._held += arguments
        if not self._within:
            begin = _BEGIN.match(self._held)
            if begin is None:
                return ""
            self._held, self._within = self._held[begin.end() :], True
        text = ""
        while not self._done and self._held:
            plain = re.match(r'[^"\\]*', self._held)
            text += plain[0] if plain else ""
            self._held = self._held[plain.end() if plain else 0 :]
            self._done = self._held.startswith('"')
            escape = _ESCAPE.match(self._held)
            if escape is None or _HALF.fullmatch(self._held):
                break
            text += json.loads(f'"{escape[0]}"')
            self._held = self._held[escape.end() :]
        return _SURROGATE.sub("\ufffd", text)
