"""tekken.json, Mistral's file of a tokenizer: bytes of tokens by rank, and special tokens.

The first ids are those of special tokens, and the others follow in the order of their ranks, as
many as the file wants. Words are cut by its expression; of two neighbours, those whose joined bytes
have the lowest rank merge first.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from sterna.chat.mistral import template_of
from sterna.checkpoints.merges import scored_merges
from sterna.errors import ModelFormatError, shown
from sterna.files.jsonfile import load_json_object
from sterna.files.words import words
from sterna.token_bytes import spelled
from sterna.tokenizer import MAX_TOKENIZER_BYTES, MAX_VOCAB, checked_backend

__all__ = ["BOS", "EOS", "TEKKEN", "Tekken"]

TEKKEN = "tekken.json"
BOS, EOS = "<s>", "</s>"
#: Of files without a list: versions up to 7.
SPECIAL = words("""
    <unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS]
    [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX]
    [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]
""")


@dataclass(frozen=True)
class Tekken:
    """The tokenizer of a file, and the chat template of its version; None if it is not known."""

    backend: tokenizers.Tokenizer
    template: str | None

    @classmethod
    def read(cls, file: Path) -> Tekken:
        """Read a file; ModelFormatError if it breaks a rule."""
        reader = _Reader(file)
        return cls(checked_backend(file, reader.backend), template_of(reader.version))


class _Reader:
    def __init__(self, file: Path) -> None:
        self.file = file
        content = load_json_object(file, MAX_TOKENIZER_BYTES)
        config = content.get("config")
        self._config = config if isinstance(config, dict) else {}
        n_special = self._count("default_num_special_tokens")
        n_tokens = self._count("default_vocab_size")
        self.version = self._text("version")
        self._pattern = self._text("pattern")
        self._special = list(self._special_tokens(content.get("special_tokens"), n_special))
        plain = max(0, n_tokens - n_special)
        self._plain = list(self._plain_tokens(content.get("vocab"), plain))

    def backend(self) -> tokenizers.Tokenizer:
        """Make the library's tokenizer."""
        tokens = [*self._special, *self._plain]
        ids = {token: id for id, token in enumerate(tokens)}
        if len(ids) < len(tokens):
            twice = next(t for id, t in enumerate(tokens) if ids[t] != id)
            raise self._error("vocab", "each token once", shown(twice))
        scores = np.concatenate(
            [np.full(len(self._special), np.nan), -np.arange(len(self._plain), dtype=np.float64)]
        )
        merges = scored_merges(ids, scores) if ids else []
        made = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(self._pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(t, normalized=False) for t in self._special])
        if BOS in self._special:
            made.post_processor = processors.TemplateProcessing(
                single=[BOS, "$A"], pair=[BOS, "$A", "$B"], special_tokens=[(BOS, ids[BOS])]
            )
        return made

    def _special_tokens(self, given: object, count: int) -> Iterator[str]:
        """Yield the texts of special tokens; those without one have names by their number."""
        listed: Any = [{"rank": i, "token_str": t} for i, t in enumerate(SPECIAL)]
        listed = listed if given is None else given
        if not isinstance(listed, list) or len(listed) > count:
            raise self._error("special_tokens", f"a list of at most {count}", shown(given))
        for rank, token in enumerate(listed):
            text = self._ranked("special_tokens", token, rank).get("token_str")
            if not isinstance(text, str) or not text:
                raise self._error(f"special_tokens.{rank}.token_str", "a text", shown(text))
            yield text
        yield from (f"<SPECIAL_{rank}>" for rank in range(len(listed), count))

    def _plain_tokens(self, given: object, count: int) -> Iterator[str]:
        """Yield the first tokens, each byte as a character of GPT-2's alphabet."""
        if not isinstance(given, list) or not 256 <= count <= len(given):
            got = len(given) if isinstance(given, list) else shown(given)
            raise self._error("vocab", f"a list of {max(256, count)} tokens at least", got)
        for rank, token in enumerate(given[:count]):
            text = self._ranked("vocab", token, rank).get("token_bytes")
            try:
                data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
            except (binascii.Error, ValueError):
                data = b""
            if not data or (rank < 256 and data != bytes([rank])):
                rule = "the byte of its rank in Base64" if rank < 256 else "bytes in Base64"
                raise self._error(f"vocab.{rank}.token_bytes", rule, shown(text))
            yield spelled(data)

    def _ranked(self, field: str, token: object, rank: int) -> dict[str, Any]:
        given = token if isinstance(token, dict) else {}
        if type(given.get("rank")) is not int or given["rank"] != rank:
            raise self._error(f"{field}.{rank}", f"an object of rank {rank}", shown(token))
        return given

    def _count(self, name: str) -> int:
        value = self._config.get(name)
        if type(value) is not int or not 0 <= value <= MAX_VOCAB:
            raise self._error(f"config.{name}", f"a whole number up to {MAX_VOCAB}", shown(value))
        return value

    def _text(self, name: str) -> str:
        value = self._config.get(name)
        if not isinstance(value, str):
            raise self._error(f"config.{name}", "a text", shown(value))
        return value

    def _error(self, field: str, expected: str, got: object) -> ModelFormatError:
        return ModelFormatError(self.file, field, expected, got)
