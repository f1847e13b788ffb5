"""`Tokenizer`: text to ids. `Detokenizer`: ids to text, one token at a time."""

from __future__ import annotations

import codecs
import hashlib
import json
import operator
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sterna.errors import ModelFormatError, RequestError, shown
from sterna.files.jsonfile import load_settings
from sterna.token_bytes import token_bytes_of
from sterna.tokenizer.backend import Backend, library_errors, read_backend, special_ids

__all__ = ["Detokenizer", "PairIds", "Tokenizer"]

_REPLACEMENT = "\ufffd"


class PairIds(NamedTuple):
    """Ids of two texts, the kind of each by the template (0 or 1), and its text: 0, 1, or None for
    a special token."""

    ids: list[int]
    kinds: list[int]
    parts: list[int | None]

    @property
    def second(self) -> int:
        """Where the second kind begins; the number of ids if the template does not tell."""
        return self.kinds.index(1) if 1 in self.kinds else len(self.ids)


class Tokenizer:
    """The tokenizer of a model folder; raises ModelFormatError for missing or damaged files.

    eos_ids: all ids that end a text, by tokenizer_config.json, config.json and
    generation_config.json, ascending; bos_id: the id that begins a text, or None.
    """

    def __init__(self, path: str | Path) -> None:
        folder = Path(path)
        file = folder / "tokenizer.json"
        names = ("tokenizer_config.json", "generation_config.json", "config.json")
        backend = read_backend(file)
        settings, *configs = (load_settings(folder / name) for name in names)
        self._set(file, backend, settings, configs)

    @classmethod
    def from_parts(
        cls,
        file: Path,
        backend: Backend,
        settings: dict[str, Any],
        configs: Sequence[dict[str, Any]],
        special: frozenset[int] | None = None,
    ) -> Tokenizer:
        """Make a tokenizer from parts that were read already.

        file: named in errors; backend: of the library, from `read_backend` or `checked_backend`, or
        what stands for one; settings: as tokenizer_config.json; configs: as generation_config.json
        and config.json; special: the ids of special tokens, if they are known already.
        """
        self = cls.__new__(cls)
        self._set(file, backend, settings, configs, special)
        return self

    def _set(
        self,
        file: Path,
        backend: Backend,
        settings: dict[str, Any],
        configs: Sequence[dict[str, Any]],
        special: frozenset[int] | None = None,
    ) -> None:
        self.path = file
        self._backend: Backend = backend
        self._settings = settings
        self._special = special_ids(backend) if special is None else special
        self._decoder = token_bytes_of(self._backend)
        self._limit = 1 << 32
        self.bos_id: int | None = next(iter(self._ids("bos", configs[::-1])), None)
        self.eos_ids: tuple[int, ...] = tuple(sorted(set(self._ids("eos", configs))))

    def _ids(self, kind: str, configs: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids named as "bos" or "eos", those of tokenizer_config.json first."""
        token = self._settings.get(f"{kind}_token")
        text = token.get("content") if isinstance(token, dict) else token
        with library_errors(self.path):  # for example, a lone surrogate in the name
            named = self._backend.token_to_id(text) if isinstance(text, str) else None
        ids = [] if named is None else [named]
        for config in configs:
            value = config.get(f"{kind}_token_id")
            for id in value if isinstance(value, list) else [value]:
                if isinstance(id, int) and not isinstance(id, bool) and id >= 0:  # -1 means none
                    ids.append(id)
        return ids

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of all that decides ids: the tokenizer's JSON, and the ids that open and
        end a text."""
        text = f"{self._backend.to_str()}\n{self._settings.get('add_bos_token')}"
        return hashlib.sha256(f"{text} {self.bos_id} {self.eos_ids}".encode()).hexdigest()

    def to_json(self) -> str:
        """Return tokenizer.json, without added tokens beyond the vocabulary given to `check`."""
        text = str(self._backend.to_str())
        if self._last_added() < self._limit:
            return text
        file = json.loads(text)
        file["added_tokens"] = [t for t in file["added_tokens"] if t["id"] < self._limit]
        return json.dumps(file)

    @property
    def added(self) -> dict[str, int]:
        """Added tokens, such as <|im_end|>, and their ids."""
        added = self._backend.get_added_tokens_decoder().items()
        return {token.content: id for id, token in added if token.content}

    def same_ids(self, other: Tokenizer) -> bool:
        """Whether two tokenizers have the same ids for the same tokens."""
        mine, theirs = (t._backend.get_vocab(with_added_tokens=True) for t in (self, other))
        return bool(mine == theirs)

    def check(self, vocab_size: int) -> None:
        """Raise ModelFormatError unless the ids fit a model of `vocab_size` embeddings.

        Afterwards `encode` refuses ids beyond them. Added tokens may lie there, such as image
        tokens of a text-only model (Gemma 3 1B), and tokens of a vocabulary with gaps. These are
        not looked for here: listing 128k tokens would take longer than the rest of loading.
        """
        self._check_id(self._backend.get_vocab_size(with_added_tokens=False) - 1, vocab_size)
        # They may come from another file, but a model that cannot draw them has no use for them.
        self._check_id(self.bos_id or 0, vocab_size, "bos_token_id")
        self._check_id(max(self.eos_ids, default=0), vocab_size, "eos_token_id")
        self._limit = vocab_size

    def _last_added(self) -> int:
        return max(self._backend.get_added_tokens_decoder(), default=0)

    def _check_id(self, id: int, vocab_size: int, field: str = "vocabulary") -> None:
        if id >= vocab_size:
            raise ModelFormatError(
                self.path,
                field,
                f"ids below the model's vocab_size {vocab_size}",
                f"id {id}",
                remedy="use the tokenizer that the model was trained with",
            )

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids of a text; special tokens that it spells out become their ids.

        add_special: add what the model expects around a text, such as BOS. Raises RequestError if
        `text` is no string of whole characters, or has tokens beyond the model's (`check`).
        """
        self._check_text(text)
        # transformers' rule: an explicit add_bos_token overrides tokenizer.json's post-processor.
        explicit = self._settings.get("add_bos_token")
        override = add_special and isinstance(explicit, bool) and self.bos_id is not None
        opening = [self.bos_id] if override and explicit and self.bos_id is not None else []
        with library_errors(self.path):
            ids = self._backend.encode(text, add_special_tokens=add_special and not override).ids
        self._check_limit(ids)
        return [*opening, *ids]

    def encode_pair(self, first: str, second: str) -> PairIds:
        """Return the ids of two texts by the tokenizer's template for pairs.

        Raises RequestError as `encode`.
        """
        for text in (first, second):
            self._check_text(text)
        with library_errors(self.path):
            pair = self._backend.encode(first, second)
        self._check_limit(pair.ids)
        return PairIds(list(pair.ids), list(pair.type_ids), list(pair.sequence_ids))

    def first_tokens(self, text: str, count: int) -> str:
        """Return the beginning of a text that has `count` tokens, or a few more or less: a cut
        within a word may change how it is split, and no character is cut."""
        self._check_text(text)
        with library_errors(self.path):
            ends = [end for _, end in self._backend.encode(text, add_special_tokens=False).offsets]
        return text if count >= len(ends) else text[: ends[count - 1] if count > 0 else 0]

    @staticmethod
    def _check_text(text: object) -> None:
        if not isinstance(text, str):
            raise RequestError(
                f"text: must be a string, but got {type(text).__name__}; decode bytes first"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError(
                "text: must be valid Unicode, but got a lone surrogate; decode the input as UTF-8"
            ) from None

    def _check_limit(self, ids: Sequence[int]) -> None:
        if (last := max(ids, default=0)) >= self._limit:
            raise RequestError(
                f"text: must have tokens below {self._limit}, as the model embeds no others, but "
                f"got {shown(self._backend.id_to_token(last))}, id {last}; leave it out"
            )

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of ids, with U+FFFD for invalid UTF-8; raises RequestError for non-ids.

        It is the pieces of a `Detokenizer`, joined.
        """
        try:
            each = iter(ids)
        except TypeError:  # an array without dimensions is Iterable, but is not
            raise RequestError(
                f"ids: must be a sequence of token ids, but got {shown(ids)}"
            ) from None
        stream = Detokenizer(self, skip_special=skip_special)
        return "".join([*map(stream.push, each), stream.flush()])

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that a token adds within a text, special tokens included.

        They may be part of a character, and are empty for an id without a token. Raises
        RequestError for non-ids.
        """
        token = self._token(id)
        if token is None or self._decoder is None:
            return (token or "").encode()
        return self._decoder.decode(token, False)

    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its text, such as <|fim_prefix|>, or None."""
        with library_errors(self.path):
            id: int | None = self._backend.token_to_id(text)
        return id

    def added_at(self, text: str) -> int | None:
        """Return the id of the longest added token, such as <|im_end|>, that begins `text`."""
        matches = [(len(t), id) for t, id in self.added.items() if text.startswith(t)]
        return max(matches)[1] if matches else None

    def special_in(self, text: str) -> frozenset[int]:
        """Return the ids of the special tokens that occur in a text."""
        found = ((token, id) for token, id in self.added.items() if id in self._special)
        return frozenset(id for token, id in found if token in text)

    def _token(self, id: int) -> str | None:
        try:
            number = operator.index(id)  # numpy's whole numbers are ids, too
        except TypeError:
            number = -1
        if not 0 <= number < 1 << 32:
            raise RequestError(
                "token id: must be a whole number in 0..2^32-1, "
                f"but got {shown(id)}; see vocab_size"
            )
        token: str | None = self._backend.id_to_token(number)
        return token


#: Tokens at either end of a prompt that a detokenizer reads: more than any state depends on.
TELLING = 16


class Detokenizer:
    """Turns a stream of ids into text, holding back the bytes of an unfinished character.

    skip_special: leave out special tokens, but those of `visible`. prompt: the ids before the
    stream. Their text is not repeated, but decides whether a leading space belongs to the text, and
    a character may begin there. The library's `DecodeStream` would repeat the begin of such a
    character, drops the end of a text that ends inside one, and fails after bytes that are no
    character (test_tokenizer.py).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        skip_special: bool = True,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer._special - visible if skip_special else frozenset[int]()
        self._decoder = tokenizer._decoder
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._strip = self._decoder.strip if self._decoder else 0
        self._ids: list[int] = []  # only for a decoder of unknown rules
        self._emitted = ""
        for id in self._telling(prompt):
            self.push(id)
        self._pushed = False

    def _telling(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return the ids of a prompt that a known decoder's state depends on.

        The first decide whether a leading space is stripped; a character has at most four bytes,
        so that an unfinished one began in the last four tokens that have any.
        """
        if self._decoder is None or len(prompt) <= 2 * TELLING:
            return prompt
        last = (id for id in reversed(prompt[TELLING:]) if id not in self._skip)
        return [*prompt[:TELLING], *reversed(list(islice(last, TELLING)))]

    def push(self, id: int) -> str:
        """Return the text that an id completes, possibly empty; raises RequestError for non-ids."""
        token = self._tokenizer._token(id)
        if token is None or id in self._skip:
            return ""
        self._pushed = True
        if self._decoder is None:
            self._ids.append(id)
            return self._decode_all(final=False)
        data = self._decoder.decode(token, self._first)
        self._first = False
        return self._stripped(self._utf8.decode(data))

    def flush(self, *, cut: bool = False) -> str:
        """Return the rest of the stream at its end: U+FFFD for an unfinished character.

        cut: whether the stream was stopped before its own end; an unfinished character is left out
        then.
        """
        if not self._pushed:
            return ""  # an unfinished character belongs to the prompt
        if self._decoder is None:
            rest = self._decode_all(final=True)
            return rest.rstrip(_REPLACEMENT) if cut else rest
        return "" if cut else self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(self._decoder.strip_char if self._decoder else " "):
                self._strip = 0
                break
            self._strip -= 1
            text = text[1:]
        return text

    def _decode_all(self, final: bool) -> str:
        # Quadratic, but right for any decoder: only text that later tokens cannot change is given.
        text = self._tokenizer._backend.decode(self._ids, skip_special_tokens=False)
        if not final and (text.endswith(_REPLACEMENT) or not text.startswith(self._emitted)):
            return ""
        piece = text[len(self._emitted) :]
        self._emitted = text
        return piece
