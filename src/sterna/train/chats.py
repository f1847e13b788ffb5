"""Chats in a JSON Lines file -> rows of tokens that training takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sterna.chat import ChatTemplate
from sterna.chat.documents import documents
from sterna.errors import RequestError
from sterna.tokenizer import Tokenizer

__all__ = ["Example", "Rows", "examples", "rows_of"]

IGNORED = -100  # a label that torch's cross entropy passes over


class Example(NamedTuple):
    """A conversation or a text; trained: whether the loss counts a token."""

    tokens: list[int]
    trained: list[bool]


class Rows(NamedTuple):
    """tokens, positions, labels: int64 [rows, length]; cut: examples that were too long for one."""

    tokens: Tensor
    positions: Tensor
    labels: Tensor
    cut: int


def examples(file: Path, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[Example]:
    """Read the examples of a file, a JSON object a line: {"messages": [...]} or {"text": "..."}.

    The loss covers all of a text, or the assistant's answers of a conversation, as the template
    renders them after the opening of an answer. Both end with the tokenizer's end token. Raises
    ModelFormatError that names the line, and RequestError for messages without a template.
    """
    made = []
    for line, text, messages in documents(file):
        if text is not None:
            tokens = tokenizer.encode(text)
            made.append(_ended(Example(tokens, [True] * len(tokens)), tokenizer))
            continue
        if template is None:
            raise RequestError(f"{file}: has messages, but the model has no chat template")
        try:
            made.append(_chat(messages, tokenizer, template))
        except RequestError as e:
            raise RequestError(f"{file}: line {line}: {e}") from None
    return made


def _chat(messages: list[Any], tokenizer: Tokenizer, template: ChatTemplate) -> Example:
    tokens = tokenizer.encode(template.render(messages, False), False)
    trained = [False] * len(tokens)
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        before = tokenizer.encode(template.render(messages[:i], True), False) if i else []
        after = tokenizer.encode(template.render(messages[: i + 1], False), False)
        # Tokens may join where texts meet: the common ones are those before the answer.
        begin = next(
            (k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
            min(len(before), len(after)),
        )
        if after[:begin] != tokens[:begin] or len(after) > len(tokens):
            raise RequestError("messages: must begin alike in the template, turn after turn")
        trained[begin : len(after)] = [True] * (len(after) - begin)
    if not any(trained):
        raise RequestError("messages: must have an answer of the assistant to be trained on")
    return _ended(Example(tokens, trained), tokenizer)


def _ended(example: Example, tokenizer: Tokenizer) -> Example:
    end = min(tokenizer.eos_ids, default=None)
    if end is None or example.tokens[-1] in tokenizer.eos_ids:
        return example
    return Example([*example.tokens, end], [*example.trained, True])


def rows_of(tokenised: Sequence[Example], length: int) -> Rows:
    """Put examples into rows, one after the other. Positions restart with each example, which
    attends only to itself. An example that does not fit begins a row; one that is longer than a row
    is cut.
    """
    rows: list[list[Example]] = [[]]
    used = 0
    for example in tokenised:
        size = min(len(example.tokens), length)
        if used + size > length:
            rows.append([])
            used = 0
        rows[-1].append(Example(example.tokens[:length], example.trained[:length]))
        used += size
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    positions = torch.zeros_like(tokens)
    labels = torch.full_like(tokens, IGNORED)
    for i, row in enumerate(rows):
        at = 0
        for example in row:
            end = at + len(example.tokens)
            tokens[i, at:end] = torch.tensor(example.tokens)
            positions[i, at:end] = torch.arange(end - at)
            trained = torch.tensor([False, *example.trained[1:]])  # nothing comes before the first
            labels[i, at:end] = torch.where(trained, tokens[i, at:end], IGNORED)
            at = end
        positions[i, at:] = torch.arange(length - at)
    return Rows(tokens, positions, labels, sum(len(e.tokens) > length for e in tokenised))
