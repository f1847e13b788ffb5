"""Calls as a chat template writes them, for tests of the formats of calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.engine.decoding.constraints import Constraint, Constraints
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.tool_call_formats import ToolCallFormat, for_template, format_of
from sterna.llm.tool_call_formats.derive import without_turn_end
from sterna.llm.tool_choice import ToolChoice
from sterna.tokenizer import Tokenizer

Calls = list[tuple[str, dict[str, Any]]]
IDS = ("a1b2c3d4e", "z9y8x7w6v")
USER = {"role": "user", "content": "Q"}


def tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    function = {"name": name, "description": "Tries a call.", "parameters": schema}
    return {"type": "function", "function": function}


def rendered(
    template: ChatTemplate, calls: Calls, tools: list[dict[str, Any]], as_text: bool = False
) -> str:
    """An answer with calls behind the prompt for it, as the template writes it: reasoning that is
    empty, white space before calls and the end of the turn are left out."""
    made = []
    for (name, arguments), id in zip(calls, IDS, strict=False):
        given: Any = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
        function = {"name": name, "arguments": given}
        made.append({"id": id, "type": "function", "function": function})
    answer = {"role": "assistant", "content": "", "tool_calls": made}
    messages, shown = for_template(template, [USER, answer], tools)
    text = template.render(messages, False, tools=shown or None)
    asked, shown = for_template(template, [USER], tools)
    prompt = template.render(asked, True, tools=shown or None)
    same = next(
        (i for i, (a, b) in enumerate(zip(text, prompt, strict=False)) if a != b), len(prompt)
    )
    call_format = format_of(template)
    if not call_format.messages:
        start = call_format.frame.opens or call_format.trigger
        same = max(text.find(start, max(0, same - len(start))), same - len(start))
    if closes := call_format.frame.closes:
        return text[same : text.rindex(closes) + len(closes)]
    return without_turn_end(text[same:], template.after_answer().strip())


def allowed(constraint: Constraint, constraints: Constraints, text: str) -> str:
    """The longest begin of a text that a constraint allows."""
    ids = constraints.tokenizer.encode(text, add_special=False)
    valid = constraint.matcher().valid(ids)
    return constraints.tokenizer.decode(ids[:valid], skip_special=False)


def constrained(
    constraints: Constraints, call_format: ToolCallFormat, schemas: dict[str, Any], **options: Any
) -> Constraint:
    """The constraint of an answer that may call tools."""
    calls = [c for n, s in schemas.items() for c in call_format.tool_calls(n, s, False)]
    return constraints.tools(
        calls, "" if call_format.messages else call_format.trigger, frame=call_format.frame,
        messages=call_format.messages, **options,
    )  # fmt: skip


def answer_format(template: ChatTemplate | None, schemas: dict[str, Any]) -> AnswerFormat:
    """How answers are written to a prompt that opens no reasoning."""
    tools = ToolChoice.of_tools(
        [tool(name, schema) for name, schema in (schemas or {"f": {}}).items()]
    )
    return AnswerFormat(template, tools, ReasoningState.FREE)


def parsed(
    template: ChatTemplate | None, text: str, schemas: dict[str, Any], step: int = 0
) -> tuple[Calls, str]:
    """The calls of an answer, and its content; given whole, or in steps of characters."""
    parser = answer_format(template, schemas).parser()
    pieces = [text[i : i + step] for i in range(0, len(text), step)] if step else [text]
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.end()
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if delta.kind == "tool_calls":
            calls += [(delta.name, "")] if delta.id else []
            name, arguments = calls[delta.index]
            calls[delta.index] = name, arguments + delta.text
    content = "".join(delta.text for delta in deltas if delta.kind == "content")
    return [(name, json.loads(arguments)) for name, arguments in calls], content


def byte_tokenizer(folder: Path, special: Sequence[str], end: str) -> Tokenizer:
    """A tokenizer of single bytes and special tokens, one of which ends an answer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in special])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    return Tokenizer(folder)
