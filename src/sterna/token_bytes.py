"""`TokenBytes`: the bytes that a tokenizer's decoder makes of a single token."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["TokenBytes", "spelled", "token_bytes_of"]


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 is itself, other bytes are U+0100 upwards."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in printable}
    others = (b for b in range(256) if chr(b) not in alphabet)
    return alphabet | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()
_CHARACTERS = {byte: character for character, byte in _BYTES.items()}
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # strictly: "<0x-1>" is text


def spelled(data: bytes) -> str:
    """Spell bytes in GPT-2's alphabet, as tokens of byte-level vocabularies are."""
    return "".join(map(_CHARACTERS.__getitem__, data))


@dataclass(frozen=True)
class TokenBytes:
    """The rules by which a decoder of tokenizer.json turns one token into bytes.

    replace: (old, new) pairs that are applied first, such as "▁" to " ". byte_level: each character
    is a byte; else, as in SentencePiece, `<0x0A>` is a byte if `fallback`, the first token loses
    every `drop` (Metaspace), and the whole text up to `strip` leading `strip_char`.
    """

    byte_level: bool = False
    replace: tuple[tuple[str, str], ...] = ()
    fallback: bool = False
    drop: str = ""
    strip: int = 0
    strip_char: str = " "

    def decode(self, token: str, first: bool) -> bytes:
        """Return the token's UTF-8 bytes, perhaps of a part of a character."""
        if self.byte_level:
            for old, new in self.replace:
                token = token.replace(old, new)
            try:
                return bytes([_BYTES[c] for c in token])
            except KeyError:  # an added token is its own text
                return token.encode()
        if self.fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        if first and self.drop:
            token = token.replace(self.drop, "")
        for old, new in self.replace:
            token = token.replace(old, new)
        return token.encode()


class HasDecoder(Protocol):
    """A tokenizer of the tokenizers library, or what stands for one."""

    @property
    def decoder(self) -> Any:
        """Its decoder, or None."""


def token_bytes_of(backend: HasDecoder) -> TokenBytes | None:
    """Return the rules of a tokenizer's decoder, or None if it is of another kind."""
    if backend.decoder is None:
        return None
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["Metaspace"]:
        mark = steps[0]["replacement"]
        drop = "" if steps[0]["prepend_scheme"] == "never" else mark
        return TokenBytes(replace=((mark, " "),), drop=drop)
    n = kinds.count("Replace")
    if any("String" not in step["pattern"] for step in steps if step["type"] == "Replace"):
        return None
    if kinds[:n] != ["Replace"] * n:
        return None
    replace = tuple((step["pattern"]["String"], step["content"]) for step in steps[:n])
    if kinds == ["Replace"] * n + ["ByteLevel"]:
        return TokenBytes(byte_level=True, replace=replace)
    # Replace* ByteFallback? Fuse Strip?: a strip of the whole text needs the tokens fused before.
    order = ["Replace"] * n + ["ByteFallback", "Fuse", "Strip"]
    if "Fuse" not in kinds or kinds != [kind for kind in order if kind in kinds]:
        return None
    strip, strip_char = 0, " "
    if kinds[-1] == "Strip":
        if steps[-1]["stop"]:
            return None
        strip, strip_char = steps[-1]["start"], steps[-1]["content"]
    return TokenBytes(False, replace, "ByteFallback" in kinds, "", strip, strip_char)
