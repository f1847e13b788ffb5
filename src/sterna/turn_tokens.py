"""Tokens that structure conversations: which ones end a turn, by the vocabulary's family.

A token means different things in different families: `<|end|>` ends Phi-3's turns, but in
gpt-oss (Harmony) it ends one message of a turn, with the final channel still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ALL_TURN_TOKENS", "inner_end_tokens", "turn_end_tokens", "turn_tokens_of"]


@dataclass(frozen=True)
class _Family:
    """The turn tokens of a family of models.

    known_by: tokens that only this family's vocabularies have, and all of them; ends: end a turn;
    opens: begin a turn; inner: end only a part of a turn, whatever a file says.
    """

    known_by: tuple[str, ...]
    ends: tuple[str, ...]
    opens: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        return (*self.known_by, *self.ends, *self.opens, *self.inner)


# Tokens that end a text in every family that has them.
_TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")
# From the templates and generation_config.json that the families' makers publish.
_FAMILIES = (
    _Family(  # Llama 3
        ("<|eot_id|>",), ("<|eot_id|>", "<|eom_id|>"), ("<|start_header_id|>", "<|end_header_id|>")
    ),
    _Family(("<|header_start|>",), ("<|eot|>", "<|eom|>"), ("<|header_end|>",)),  # Llama 4
    _Family(("<|im_end|>",), ("<|im_end|>",), ("<|im_start|>",)),  # ChatML: Qwen, SmolLM, Hermes
    _Family(("<end_of_turn>",), ("<end_of_turn>",), ("<start_of_turn>",)),  # Gemma 1 to 3
    _Family(("<turn|>",), ("<turn|>", "<|tool_response>"), ("<|turn>",)),  # Gemma 4
    _Family(("<|user|>", "<|assistant|>", "<|end|>"), ("<|end|>",)),  # Phi-3, Phi-4-mini
    _Family(  # gpt-oss: Harmony
        ("<|start|>", "<|channel|>", "<|message|>", "<|return|>"),
        ("<|return|>", "<|call|>"),
        inner=("<|end|>",),
    ),
    _Family(  # Solar Open
        ("<|begin|>", "<|content|>", "<|flush|>"), ("<|flush|>", "<|calls|>"), inner=("<|end|>",)
    ),
    _Family(("<|im_user|>",), ("<|im_end|>", "[EOT]", "[EOS]")),  # Kimi
    _Family(("<｜Assistant｜>",), ("<｜end▁of▁sentence｜>",), ("<｜User｜>",)),  # DeepSeek
    _Family(("<|end_of_turn|>",), ("<|end_of_turn|>",)),  # OpenChat
    _Family(("<end_of_utterance>",), ("<end_of_utterance>",)),  # SmolVLM, Docling
)
#: The turn tokens of all families.
ALL_TURN_TOKENS = frozenset(token for family in _FAMILIES for token in family.tokens)


def turn_end_tokens(has: Callable[[str], bool]) -> frozenset[str]:
    """Return the tokens that end a turn or a text; has: whether the vocabulary has a token."""
    ends = (*_TEXT_ENDS, *(end for family in _families(has) for end in family.ends))
    return frozenset(filter(has, ends)) - inner_end_tokens(has)


def inner_end_tokens(has: Callable[[str], bool]) -> frozenset[str]:
    """Return tokens that look like ends but do not end the turn."""
    return frozenset(token for family in _families(has) for token in family.inner)


def turn_tokens_of(has: Callable[[str], bool]) -> frozenset[str]:
    """Return all turn tokens of the vocabulary's families, and ends of a text."""
    tokens = (*_TEXT_ENDS, *(token for family in _families(has) for token in family.tokens))
    return frozenset(filter(has, tokens))


def _families(has: Callable[[str], bool]) -> tuple[_Family, ...]:
    """Return the vocabulary's families: several after training on another one's template."""
    return tuple(family for family in _FAMILIES if all(map(has, family.known_by)))
