"""Fill-in-the-middle (FIM) prompts, with the model's own FIM tokens."""

from __future__ import annotations

from typing import Any

from sterna.llm import LLM
from sterna.server.errors import field_error
from sterna.tokenizer import Tokenizer

__all__ = ["fill_prompt", "fill_tokens"]

#: Tokens by model family: before the prefix, the suffix and the middle.
FILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def fill_tokens(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """Return the tokens before the prefix, the suffix and the middle; None if there are none."""
    for names in FILL:
        opening, gap, middle = map(tokenizer.token_id, names)
        if opening is not None and gap is not None and middle is not None:
            return opening, gap, middle
    return None


def fill_prompt(llm: LLM, before: Any, after: str, begun: str = "") -> list[int]:
    """Make the prompt for the text between two others; begun: its beginning. ApiError 400."""
    if not isinstance(before, str):
        raise field_error("suffix", "needs a prompt that is a text")
    marks = fill_tokens(llm.tokenizer)
    if marks is None:
        raise field_error("suffix", f"{llm.name} has no fill-in-the-middle tokens, so omit it")
    opening, gap, middle = marks
    encode = llm.tokenizer.encode
    inner = encode(begun, False) if begun else []
    return [opening, *encode(before, False), gap, *encode(after, False), middle, *inner]
