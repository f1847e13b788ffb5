"""The types of a GGUF file's tokens, corrected where its keys are wrong or say too little.

Published files list a token twice, type turn marks as words, and have no key for the white space
that an added token takes with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from tokenizers import decoders

from sterna.errors import shown, warn
from sterna.gguf.metadata import Metadata
from sterna.turn_tokens import ALL_TURN_TOKENS, inner_end_tokens, turn_end_tokens, turn_tokens_of

__all__ = ["TokenTypes", "special_id", "types_of", "unique_spellings"]

PREFIX = "tokenizer.ggml."
# Values of token_type: llama.cpp's llama_token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
ADDED = (UNKNOWN, CONTROL, USER_DEFINED)
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)]  # of no text, by Unicode's rule
#: Forms of a template's marks: <|user|>, <｜User｜>, <|turn>, <turn|>; [INST]; and XML tags.
_PIPED = re.compile(r"<[|｜][^\s<>|｜]{1,64}[|｜]?>|<[^\s<>|｜]{1,64}[|｜]>|\[/?[A-Z_]{3,64}\]")
_TAG = re.compile(r"</?[A-Za-z][\w:.-]{0,64}>")
#: SentencePiece's own special tokens, which files of `llama` may leave unnamed.
_SENTENCEPIECE = {"unknown": (0, "<unk>"), "bos": (1, "<s>"), "eos": (2, "</s>")}
#: Phi-3's added tokens strip the white space after them, except these (its tokenizer.json).
_PHI3 = re.compile(r"phi-?3", re.IGNORECASE)
_PHI3_KEEPS = ("<unk>", "<s>", "<|endoftext|>")


def unique_spellings(
    metadata: Metadata, tokens: list[str]
) -> tuple[list[str], list[decoders.Decoder]]:
    """Give each token its own spelling; also return the decoders that restore the text.

    If a spelling comes twice, the last id keeps it, as in llama.cpp and transformers. The others
    get a suffix of two noncharacters used as digits.
    """
    last = {token: i for i, token in enumerate(tokens)}
    copies = [i for i, token in enumerate(tokens) if token and last[token] != i]
    if not copies:
        return tokens, []
    used = set("".join(tokens))
    free = [c for c in _NONCHARACTERS if c not in used][:2]
    if len(free) < 2:
        raise metadata.error(f"{PREFIX}tokens", "each token once", shown(tokens[copies[0]]))
    spellings = list(tokens)
    for n, i in enumerate(copies):
        spellings[i] += f"{n:b}".translate({48: free[0], 49: free[1]})
    warn(
        f"{metadata.path}: {_shown(tokens[i] for i in copies)}: a token twice in the vocabulary; "
        "texts get the last id of each"
    )
    return spellings, [decoders.Replace(c, "") for c in free]


def special_id(metadata: Metadata, kind: str, tokens: Sequence[str]) -> int | None:
    """Return the id of a special token ("bos", "eos", "eot", "eom", "unknown"), or None."""
    key = f"{PREFIX}{kind}_token_id"
    if key not in metadata:
        id, spelling = _SENTENCEPIECE.get(kind, (0, ""))
        sentencepiece = metadata.text(f"{PREFIX}model") == "llama"
        return id if sentencepiece and spelling and tokens[id : id + 1] == [spelling] else None
    id = metadata.integer(key, most=2**32 - 1)
    if id == 2**32 - 1:  # -1: none
        return None
    if id >= len(tokens):
        raise metadata.error(key, f"an id below {len(tokens)}", id)
    return id


def types_of(metadata: Metadata, tokens: Sequence[str]) -> list[int]:
    """Return the types of tokens as the file has them; NORMAL without any."""
    if f"{PREFIX}token_type" not in metadata:
        return [NORMAL] * len(tokens)
    types = metadata.numbers(f"{PREFIX}token_type", len(tokens))
    kinds: list[int] = types.astype(np.int64).tolist()
    return kinds


class TokenTypes:
    """The corrected types of all tokens.

    types: the token_type of each; turn marks are control tokens even if the file says otherwise.
    """

    def __init__(
        self,
        metadata: Metadata,
        tokens: Sequence[str],
        ids: Mapping[str, int],
        named: Iterable[int],
        merged: Collection[str],
    ) -> None:
        """ids: the id of each of `tokens`. named: ids that keys name as special. merged: results of
        merges."""
        self._metadata, self._tokens, self._ids = metadata, tokens, ids
        self.types: list[int] = self._read_types()
        for id in named:
            self.types[id] = UNKNOWN if self.types[id] == UNKNOWN else CONTROL
        self._correct(merged)

    def _read_types(self) -> list[int]:
        """Read the file's types; NORMAL without any, and for byte tokens always."""
        kinds = types_of(self._metadata, self._tokens)
        if self._metadata.text(f"{PREFIX}model") != "gpt2":
            for i, token in enumerate(self._tokens):
                if kinds[i] in ADDED and len(token) == 6 and _BYTE.fullmatch(token):
                    kinds[i] = NORMAL
        return kinds

    def _correct(self, merged: Collection[str]) -> None:
        """Correct the types of turn marks, which merges would split into letters.

        A family's marks are known. Others come from the chat template: texts in the form of marks
        are control tokens. Tags such as <think>, which answers show, are user-defined if no merge
        makes them.
        """
        templates, has = self._templates(), self._ids.__contains__
        marks = {*turn_tokens_of(has), *filter(has, _PIPED.findall(templates))}
        marks.update(mark for mark in ALL_TURN_TOKENS if has(mark) and mark in templates)
        tags = {tag for tag in filter(has, _TAG.findall(templates)) if tag not in merged} - marks
        roles = dict.fromkeys(sorted(marks), CONTROL) | dict.fromkeys(sorted(tags), USER_DEFINED)
        corrected = [t for t in roles if self.types[self._ids[t]] not in ADDED]
        for token in corrected:
            self.types[self._ids[token]] = roles[token]
        if corrected:
            warn(
                f"{self._metadata.path}: {_shown(corrected)}: the file types them as words, but "
                "they are marks by the chat template or their family; they are taken as marks"
            )

    def _templates(self) -> str:
        """Return the text of all chat templates."""
        keys = [key for key in self._metadata if key.startswith("tokenizer.chat_template")]
        return "\n".join(
            self._metadata.text(key) for key in keys if key != "tokenizer.chat_templates"
        )

    def ends(self, named: Iterable[int]) -> tuple[int, ...]:
        """Return the ids that end a text or a turn, ascending; named: those that keys name."""
        has = self._ids.__contains__
        ends = {*named, *(self._ids[token] for token in turn_end_tokens(has))}
        if self._metadata.text(f"{PREFIX}model") == "llama" and has("</s>"):
            end = self._ids["</s>"]
            ends |= {end} if self.types[end] == CONTROL else set()  # else it is HTML's tag
        return tuple(sorted(ends - {self._ids[token] for token in inner_end_tokens(has)}))

    def takes_space(self, token: str) -> bool:
        """Whether an added token strips the white space after it: Phi-3's do, by the file's name,
        or by its architecture with SentencePiece's tokens."""
        m = self._metadata
        if not _PHI3.search(m.text("general.name", "")):
            sentencepiece = m.text(f"{PREFIX}model") == "llama"
            if not sentencepiece or m.text("general.architecture", "") != "phi3":
                return False
        return token not in _PHI3_KEEPS


def _shown(tokens: Iterable[str]) -> str:
    """Show a few of the tokens."""
    named = [shown(token) for token in tokens]
    return ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
