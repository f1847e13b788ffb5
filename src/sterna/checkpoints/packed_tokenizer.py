"""The packed tokenizer: a vocabulary that is mapped where it lies, next to packed weights.

The tokenizers library parses tokenizer.json and builds its tables anew at each start, which takes
1.3 s and 250 MB for 262k tokens. Here it keeps what is hard: added tokens, normalisation,
pre-tokenisation, and what surrounds a text. It gets no vocabulary. A pre-tokenizer behind its own
hands each piece to `_native.Tokens`, which splits it by the tables of the file.

tokenizer.sterna is a safetensors file. "library" is the library's JSON without its model; the other
tensors are the arguments of `_native.Tokens` and of its models. The metadata say which
tokenizer.json and settings it was made from. A tokenizer that has anything unknown here gets no
such file; then, and where the file belongs to others, the library reads tokenizer.json whole.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from sterna import _native
from sterna.checkpoints.safetensors import SafetensorsFile, write_safetensors
from sterna.checkpoints.safetensors_header import DTYPES
from sterna.checkpoints.token_arrays import token_arrays
from sterna.errors import SternaError
from sterna.files.reading import Span, open_regular, read_file, read_span
from sterna.tokenizer import MAX_TOKENIZER_BYTES, checked_backend, special_ids

__all__ = ["PACKED", "PackedBackend", "pack_tokenizer", "read_packed_tokenizer"]

PACKED = "tokenizer.sterna"
#: Raise it when a file would be read wrongly, as with another hash of `native/tokens`.
VERSION = 1
FACTS = "sterna.tokenizer"
#: Texts of pieces up to this length repeat, as words do.
_WORD_CHARS = 32
_WORDS = 4096
_CHUNK_BYTES = 1 << 20
#: The fields of the library's models that are read here, and the values that others must have.
_FIELDS: dict[str, dict[str, tuple[object, ...]]] = {
    "BPE": {
        "dropout": (None, 0.0),
        "continuing_subword_prefix": (None, ""),
        "end_of_word_suffix": (None, ""),
    },
    "Unigram": {},
    "WordPiece": {},
}
_READ = {
    "BPE": {"type", "vocab", "merges", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"},
    "Unigram": {"type", "vocab", "unk_id", "byte_fallback"},
    "WordPiece": {
        "type",
        "vocab",
        "unk_token",
        "continuing_subword_prefix",
        "max_input_chars_per_word",
    },
}


class PackedBackend:
    """What `Tokenizer` uses of the library's tokenizer, with a mapped vocabulary."""

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        tokens: _native.Tokens,
        mapped: NDArray[np.uint8],
        sizes: tuple[int, int],
        special: frozenset[int],
        whole: Callable[[], tokenizers.Tokenizer],
    ) -> None:
        """library: without a vocabulary; mapped: the memory of `tokens`; sizes: numbers of tokens
        without and with added ones; special: the ids of special tokens, which the library takes
        long to list; whole: reads the library's own form of the same."""
        self._library, self._tokens, self._mapped = library, tokens, mapped
        self._sizes, self._whole = sizes, whole
        self.special: frozenset[int] = special
        ours = pre_tokenizers.PreTokenizer.custom(_Splitter(tokens))
        own = library.pre_tokenizer
        library.pre_tokenizer = ours if own is None else pre_tokenizers.Sequence([own, ours])

    @property
    def decoder(self) -> Any:
        """The library's decoder."""
        return self._library.decoder

    def encode(
        self, sequence: str, pair: str | None = None, *, add_special_tokens: bool = True
    ) -> tokenizers.Encoding:
        """Encode a text or two. ModelFormatError if the file has changed."""
        made = self._library.encode(sequence, pair, add_special_tokens=add_special_tokens)
        _native.require_whole(self._mapped)
        return made

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids; all of them must be shown."""
        assert not skip_special_tokens
        tokens = [token for id in ids if (token := self.id_to_token(id)) is not None]
        decoder = self.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token."""
        id: int | None = self._library.token_to_id(token)
        return self._tokens.id(token) if id is None else id

    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id."""
        token: str | None = self._library.id_to_token(id)
        return self._tokens.token(id) if token is None else token

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of tokens."""
        return self._sizes[with_added_tokens]

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Return all tokens and their ids."""
        assert with_added_tokens
        named = ((self._tokens.token(id), id) for id in range(len(self._tokens)))
        vocab = {token: id for token, id in named if token is not None}
        return vocab | self._library.get_vocab(with_added_tokens=True)

    def get_added_tokens_decoder(self) -> dict[int, tokenizers.AddedToken]:
        """Return added tokens by their ids."""
        added: dict[int, tokenizers.AddedToken] = self._library.get_added_tokens_decoder()
        return added

    def to_str(self) -> str:
        """Return the library's JSON; it reads tokenizer.json for that."""
        return str(self._whole().to_str())


class _Splitter:
    """The library's last step before its model: pieces become tokens here, so that it gets none."""

    def __init__(self, tokens: _native.Tokens) -> None:
        def split(piece: str) -> list[tokenizers.Token]:
            return list(starmap(tokenizers.Token, tokens.split(piece)))

        self._split, self._word = split, lru_cache(_WORDS)(split)

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        """Called by the library."""
        text.tokenize(self._tokens_of)

    def _tokens_of(self, piece: str) -> list[tokenizers.Token]:
        return self._word(piece) if len(piece) <= _WORD_CHARS else self._split(piece)


def read_packed_tokenizer(
    folder: Path,
    settings: Mapping[str, Any],
    lower: bool,
    whole: Callable[[], tokenizers.Tokenizer],
) -> PackedBackend | None:
    """Map the packed tokenizer of a folder; None unless there is one that its files would make.

    settings: tokenizer_config.json; lower: whether it lower-cases texts besides; whole: reads these
    files.
    """
    path = folder / PACKED
    if not path.exists():
        return None
    try:
        file = SafetensorsFile(path)
        facts = json.loads(file.metadata[FACTS])
        if facts["made_from"] != _made_from(folder, settings, lower):
            return None
        mapped = file.map()
        if mapped is None:
            mapped = np.frombuffer(read_file(path, MAX_TOKENIZER_BYTES), np.uint8)
        arrays = _arrays(file, mapped)
        json_text = arrays["library"].tobytes()
        library = checked_backend(path, lambda: tokenizers.Tokenizer.from_buffer(json_text))
        tokens = _tokens(arrays, facts["model"])
        without, added = map(int, facts["sizes"])
        special = frozenset(map(int, facts["special"]))
    except (SternaError, ValueError, LookupError, TypeError):  # damaged, or of another version
        return None
    return PackedBackend(library, tokens, mapped, (without, added), special, whole)


def pack_tokenizer(
    folder: Path, backend: tokenizers.Tokenizer, settings: Mapping[str, Any], lower: bool
) -> None:
    """Write the packed form of a folder's tokenizer, unless it has something that is unknown here.

    backend: what the files of the folder make; settings, lower: as in `read_packed_tokenizer`.
    """
    whole = json.loads(backend.to_str())
    stated = whole.pop("model")
    added = backend.get_added_tokens_decoder()
    ids = {token.content: id for id, token in added.items()}
    sizes = [backend.get_vocab_size(with_added_tokens=many) for many in (False, True)]
    # The JSON has one token of each id, and added tokens may have had other ids elsewhere.
    model = _known(stated) if len(stated.get("vocab", ())) == sizes[0] else None
    if model is None or any(backend.token_to_id(text) != id for text, id in ids.items()):
        return
    # The library gives added tokens the ids that its vocabulary has for them.
    whole["model"] = {"type": "BPE", "vocab": ids, "merges": []}
    arrays, facts = model
    arrays["library"] = np.frombuffer(json.dumps(whole).encode(), np.uint8)
    said = {
        "made_from": _made_from(folder, settings, lower),
        "sizes": sizes,
        "special": sorted(special_ids(backend)),
        "model": facts,
    }
    write_safetensors(folder / PACKED, arrays, {FACTS: json.dumps(said)})


def _made_from(folder: Path, settings: Mapping[str, Any], lower: bool) -> list[object]:
    """Return what decides ids: of tokenizer.json a checksum, as a cryptographic hash takes longer
    and this only tells a file that was edited. A chat template decides none."""
    said = {name: value for name, value in settings.items() if name != "chat_template"}
    text = json.dumps(said, sort_keys=True)
    checksum, nbytes = 0, 0
    with open_regular(folder / "tokenizer.json") as (descriptor, state):
        nbytes, buffer = state.nbytes, memoryview(bytearray(min(state.nbytes, _CHUNK_BYTES)))
        for at in range(0, nbytes, _CHUNK_BYTES):
            span = Span(at, 0, min(_CHUNK_BYTES, nbytes - at))
            read_span(folder, descriptor, buffer, span)
            checksum = zlib.crc32(buffer[: span.nbytes], checksum)
    return [VERSION, nbytes, checksum, hashlib.sha256(text.encode()).hexdigest(), lower]


def _arrays(file: SafetensorsFile, mapped: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    arrays = {}
    for name, info in file.tensors.items():
        dtype = DTYPES[info.dtype]
        if info.offset % dtype.itemsize:
            raise ValueError(f"{name} is not aligned")
        raw = mapped[info.offset : info.offset + info.nbytes]
        arrays[name] = raw.view(dtype).reshape(info.shape)
    return arrays


def _tokens(arrays: dict[str, NDArray[Any]], model: dict[str, Any]) -> _native.Tokens:
    """Make the native vocabulary and its model."""
    tokens = _native.Tokens(arrays["starts"], arrays["text"], arrays["slots"])
    if model["type"] == "BPE":
        unknown, fuse, bytes, whole = (
            model[name] for name in ("unknown", "fuse", "bytes", "whole")
        )
        tokens.set_bpe(arrays["merges"], unknown, fuse, bytes, whole)
    elif model["type"] == "Unigram":
        tokens.set_unigram(arrays["scores"], model["unknown"], True, model["bytes"])
    else:
        tokens.set_word_pieces(model["prefix"], model["unknown"], model["max_chars"])
    return tokens


def _known(model: dict[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return the arrays and the settings of the library's model; None if it is not known here."""
    kind = model.get("type")
    fixed = _FIELDS.get(str(kind))
    if kind is None or fixed is None or not model.keys() <= _READ[kind] | fixed.keys():
        return None
    if any(model.get(name) not in values for name, values in fixed.items()):
        return None
    given = model["vocab"]
    vocab = given if isinstance(given, dict) else {t: id for id, (t, _) in enumerate(given)}
    ids = set(vocab.values())
    if not vocab or len(ids) != len(vocab) or len(vocab) != len(given) or "" in vocab:
        return None
    unknown = model.get("unk_id") if kind == "Unigram" else vocab.get(model.get("unk_token"))
    named = kind != "BPE" or model.get("unk_token") is not None
    if (named and unknown is None) or max(ids) >= 2 * len(vocab) + 65536:
        return None
    arrays = token_arrays(vocab)
    if kind == "BPE":
        arrays["merges"] = _merges(model["merges"], vocab)
        return arrays, {
            "type": kind,
            "unknown": unknown,
            "fuse": bool(model.get("fuse_unk")),
            "bytes": bool(model.get("byte_fallback")),
            "whole": bool(model.get("ignore_merges")),
        }
    if kind == "Unigram":
        arrays["scores"] = np.array([score for _, score in given], np.float64)
        return arrays, {
            "type": kind,
            "unknown": unknown,
            "bytes": bool(model.get("byte_fallback")),
        }
    return arrays, {
        "type": kind,
        "unknown": unknown,
        "prefix": model["continuing_subword_prefix"],
        "max_chars": model["max_input_chars_per_word"],
    }


def _merges(merges: Sequence[Any], vocab: Mapping[str, int]) -> NDArray[np.uint32]:
    """Return merges as a hash table. Versions of the library write them as "a b", or as two."""
    pairs = [m.split(" ") if isinstance(m, str) else m for m in merges]
    table = np.empty((len(pairs), 4), np.uint32)
    table[:, 0] = [vocab[left] for left, _ in pairs]
    table[:, 1] = [vocab[right] for _, right in pairs]
    table[:, 2] = np.arange(len(pairs))
    table[:, 3] = [vocab[left + right] for left, right in pairs]
    return _native.merge_slots(table)
