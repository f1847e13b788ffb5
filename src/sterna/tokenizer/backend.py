"""The tokenizers library: its tokenizer of a tokenizer.json, and its errors as ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from sterna.errors import ModelFormatError, SternaError, shown
from sterna.files.reading import read_file

__all__ = [
    "MAX_TOKENIZER_BYTES",
    "MAX_VOCAB",
    "Backend",
    "checked_backend",
    "library_errors",
    "lower_case",
    "read_backend",
    "special_ids",
]


class Backend(Protocol):
    """What is used of the library's tokenizer; each of its methods is as the library's."""

    @property
    def decoder(self) -> Any:
        """The decoder, or None."""

    def encode(
        self, sequence: str, pair: str | None = None, *, add_special_tokens: bool = True
    ) -> tokenizers.Encoding:
        """Encode a text, or a pair of texts."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode token ids."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token; None for none."""
        ...

    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id; None for none."""
        ...

    def get_vocab_size(self, with_added_tokens: bool) -> int:
        """Return the number of tokens."""
        ...

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        """Return the tokens and their ids."""
        ...

    def get_added_tokens_decoder(self) -> dict[int, tokenizers.AddedToken]:
        """Return the added tokens by their ids."""
        ...

    def to_str(self) -> str:
        """Return the JSON of tokenizer.json."""
        ...


MAX_TOKENIZER_BYTES = 256 << 20  # the largest public ones hold 256k tokens in 34 MB
MAX_VOCAB = 2_000_000  # far above any published vocabulary


def special_ids(backend: Backend) -> frozenset[int]:
    """Return the ids of special tokens."""
    added = backend.get_added_tokens_decoder()
    return frozenset(id for id, token in added.items() if token.special)


def lower_case(backend: tokenizers.Tokenizer) -> None:
    """Let a tokenizer lower-case texts, if it does not yet; as sentence-transformers does."""
    own = backend.normalizer
    stated = b"" if own is None else own.__getstate__()
    if b'"Lowercase"' in stated or b'"lowercase":true' in stated.replace(b" ", b""):
        return
    steps = [tokenizers.normalizers.Lowercase(), *([] if own is None else [own])]
    backend.normalizer = tokenizers.normalizers.Sequence(steps)


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer.json by the library; raises ModelFormatError if it is none."""
    if not os.path.exists(path):
        sentencepiece = path.with_name("tokenizer.model").exists()
        raise ModelFormatError(
            file=path,
            expected="a tokenizer.json",
            got="nothing at this path",
            remedy="convert tokenizer.model with transformers' AutoTokenizer(...).save_pretrained"
            if sentencepiece
            else "copy it from the model's repository",
        )
    data = bytes(read_file(path, MAX_TOKENIZER_BYTES))
    return checked_backend(path, lambda: tokenizers.Tokenizer.from_buffer(data))


def checked_backend(path: Path, make: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """Return the library's tokenizer that `make` makes.

    The library's errors and panics, and a vocabulary that is too large, raise a ModelFormatError
    that names `path`.
    """
    with library_errors(path):
        backend = make()
        backend.no_truncation()  # training may have truncated and padded; prompts must not be
        backend.no_padding()
        vocab = backend.get_vocab_size(with_added_tokens=True)
    if vocab > MAX_VOCAB:
        raise ModelFormatError(
            file=path, field="vocabulary", expected=f"at most {MAX_VOCAB} tokens", got=f"{vocab}"
        )
    return backend


@contextlib.contextmanager
def library_errors(path: Path) -> Iterator[None]:
    """Raise the library's errors and panics as a ModelFormatError that names `path`."""
    try:
        yield
    except BaseException as error:
        # The library's panics derive from BaseException, as do Ctrl-C and what other signal
        # handlers may raise.
        of_library = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if isinstance(error, (MemoryError, SternaError)) or not of_library:
            raise
        raise ModelFormatError(
            file=path,
            expected="a tokenizer of the tokenizers library",
            got=f"its error {shown(str(error) or type(error).__name__)}",
            remedy="download it again, or update the tokenizers package",
        ) from None
