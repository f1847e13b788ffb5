"""How tokens are spelt: the bytes that a tokenizer's decoder makes of each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import tokenizers

__all__ = ["Spelling", "spelling_of"]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 upwards."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in printable}
    others = (b for b in range(256) if chr(b) not in alphabet)
    return alphabet | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # strictly: "<0x-1>" is text


@dataclass(frozen=True)
class Spelling:
    """What a decoder of tokenizer.json makes of one token, for the two families of models.

    Byte-level: a character is a byte. SentencePiece: `replace` (such as "▁" to " ") on each token,
    `<0x0A>` is a byte if `fallback`, the first token loses every `drop` (Metaspace), and the
    whole text up to `strip` leading `strip_char`.
    """

    byte_level: bool = False
    replace: tuple[tuple[str, str], ...] = ()
    fallback: bool = False
    drop: str = ""
    strip: int = 0
    strip_char: str = " "

    def spell(self, token: str, first: bool) -> bytes:
        """The token's bytes of UTF-8, perhaps part of a character."""
        if self.byte_level:
            try:
                return bytes([_BYTES[c] for c in token])
            except KeyError:  # an added token is spelt as it is
                return token.encode()
        if self.fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        if first and self.drop:
            token = token.replace(self.drop, "")
        for old, new in self.replace:
            token = token.replace(old, new)
        return token.encode()


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling | None:
    """The spelling of a tokenizer's decoder, or None if it is of another kind."""
    if backend.decoder is None:
        return None
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(byte_level=True)
    if kinds == ["Metaspace"]:
        mark = steps[0]["replacement"]
        drop = "" if steps[0]["prepend_scheme"] == "never" else mark
        return Spelling(replace=((mark, " "),), drop=drop)
    # Replace* ByteFallback? Fuse Strip?: a strip of the whole text needs the tokens fused before.
    order = ["Replace"] * kinds.count("Replace") + ["ByteFallback", "Fuse", "Strip"]
    if "Fuse" not in kinds or kinds != [kind for kind in order if kind in kinds]:
        return None
    replace, strip, strip_char = [], 0, " "
    for step in steps:
        if step["type"] == "Replace":
            if "String" not in step["pattern"]:
                return None
            replace.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "Strip":
            if step["stop"]:
                return None
            strip, strip_char = step["start"], step["content"]
    return Spelling(False, tuple(replace), "ByteFallback" in kinds, "", strip, strip_char)
