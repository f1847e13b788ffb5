"""`LLM`: a model, its tokenizer and its engine, for people who want text.

llm          generate, choices, stream, chat
asking       prompts and options -> requests
templates    messages -> prompts
embedding    texts -> vectors
adapters     folders of LoRA -> adapters by name
scores       logits and log-probabilities of given tokens
loaded       a path -> model, tokenizer, engine and what shares it
"""

from __future__ import annotations

from sterna.llm.llm import LLM
from sterna.llm.templates import TEMPLATE_OPTIONS
from sterna.outputs import Completion, Piece, Stats, TokenLogprob

__all__ = ["LLM", "TEMPLATE_OPTIONS", "Completion", "Piece", "Stats", "TokenLogprob"]
