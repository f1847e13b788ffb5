"""Marks of conversations: which tokens end a turn, by the family that a vocabulary is of.

One spelling means different things in different families: `<|end|>` ends Phi-3's turns, but in
gpt-oss (Harmony) it ends one message of a turn, with the final channel still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ALL_MARKS", "ends_of", "inner_of", "marks_of"]


@dataclass(frozen=True)
class _Family:
    """A family's marks.

    known_by: all of these are in its vocabularies, and in no other family's; ends: those that end
    a turn; opens: those that begin one; inner: those that end a part of a turn, whatever a file
    says of them.
    """

    known_by: tuple[str, ...]
    ends: tuple[str, ...]
    opens: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.known_by, *self.ends, *self.opens, *self.inner)


# Ends of a text in every family that has them.
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
)  # fmt: skip
#: The marks of all families.
ALL_MARKS = frozenset(mark for family in _FAMILIES for mark in family.marks)


def ends_of(has: Callable[[str], bool]) -> frozenset[str]:
    """The marks that end a turn or a text; has: whether a spelling is a token of the vocabulary."""
    ends = (*_TEXT_ENDS, *(end for family in _families(has) for end in family.ends))
    return frozenset(filter(has, ends)) - inner_of(has)


def inner_of(has: Callable[[str], bool]) -> frozenset[str]:
    """The marks that look like ends, and after which a turn goes on."""
    return frozenset(mark for family in _families(has) for mark in family.inner)


def marks_of(has: Callable[[str], bool]) -> frozenset[str]:
    """The marks of the vocabulary's families, and ends of a text."""
    marks = (*_TEXT_ENDS, *(mark for family in _families(has) for mark in family.marks))
    return frozenset(filter(has, marks))


def _families(has: Callable[[str], bool]) -> tuple[_Family, ...]:
    """The families whose marks a vocabulary has; several after training on another's template."""
    return tuple(family for family in _FAMILIES if all(map(has, family.known_by)))
