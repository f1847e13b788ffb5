"""Prefix files: prefixes that a client has named. The pages themselves are in the disk cache.

A file holds the tokens of a prefix and the salt of its pages. So it is small, pages that several
files share are there once, and a page that the disk cache has removed since is computed again.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.engine.kv_cache.prefix_cache import PrefixCache
from sterna.errors import RequestError, shown
from sterna.files.reading import read_file
from sterna.files.writing import replacing

__all__ = ["Prefix", "StoredPrefix", "restore_prefix", "save_prefix"]

I32 = npt.NDArray[np.int32]

_MAGIC = b"sterna slot\0\0\0\0\1"
_SUM = hashlib.sha256().digest_size
#: Bytes of a file: the tokens of the longest contexts, and a salt.
MOST_BYTES = 1 << 26
#: Beyond this, names would not fit into a folder's entry.
MOST_NAME_BYTES = 240
_NAME = re.compile(r"[^/\\:*?\"<>|\x00-\x1f\x7f]+")


class Prefix(NamedTuple):
    """Tokens that a prefix cache has seen, int32, and their salt."""

    tokens: I32
    salt: str


class StoredPrefix(NamedTuple):
    """A prefix, how many of its tokens the cache has, and the bytes of their files."""

    prefix: Prefix
    n_tokens: int
    nbytes: int


def save_prefix(cache: PrefixCache, owner: str, name: str, prefix: Prefix) -> StoredPrefix:
    """Keep a prefix under a name of an owner. RequestError for a name that is no file's, or images.

    The count is that of whole pages: the tokens after them are computed again.
    """
    path = _path(cache, owner, name)
    if len(prefix.tokens) and prefix.tokens.min() < 0:
        raise RequestError("slot: must hold only text to be saved, but got images; leave them out")
    count, nbytes = cache.save(prefix.tokens, prefix.salt)
    salt = prefix.salt.encode("utf-8", "surrogatepass")
    tokens = prefix.tokens[:count].astype("<i4").tobytes()
    body = b"".join((_MAGIC, cache.disk.files.root, len(salt).to_bytes(4, "little"), salt, tokens))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = body + hashlib.sha256(body).digest()
    with replacing(path, len(data), mode=0o600) as file:
        file.write(data)
    return StoredPrefix(prefix, count, nbytes + len(data))


def restore_prefix(cache: PrefixCache, owner: str, name: str) -> StoredPrefix:
    """Read a prefix and its pages. RequestError if there is no such file, or it is of another model
    or damaged."""
    path = _path(cache, owner, name)
    if not path.is_file():
        raise RequestError(f"filename: must be one that was saved, but got {shown(name)}")
    data = bytes(read_file(path, MOST_BYTES))
    body, head = data[:-_SUM], _MAGIC + cache.disk.files.root
    sound = hashlib.sha256(body).digest() == data[-_SUM:]
    if not sound or not body.startswith(_MAGIC):
        raise RequestError(f"filename: must be a whole slot file, but {shown(name)} is damaged")
    if not body.startswith(head):
        raise RequestError(
            f"filename: must be of this model with these settings, but {shown(name)} is of others"
        )
    size, rest = int.from_bytes(body[len(head) : len(head) + 4], "little"), body[len(head) + 4 :]
    tokens = np.frombuffer(rest[size:], "<i4").astype(np.int32)
    prefix = Prefix(tokens, rest[:size].decode("utf-8", "surrogatepass"))
    count, nbytes = cache.load(*prefix)
    if count == 0 < len(tokens):
        raise RequestError(
            f"filename: must have pages that fit into memory, but {shown(name)} has none; the disk "
            "cache has removed them, or requests take all memory for keys and values"
        )
    return StoredPrefix(Prefix(tokens[:count], prefix.salt), count, nbytes + len(data))


def _path(cache: PrefixCache, owner: str, name: object) -> Path:
    """Return where an owner's file is. RequestError for a name with a folder."""
    sound = isinstance(name, str) and _NAME.fullmatch(name) and not name.startswith((".", " "))
    try:
        sound = sound and len(str(name).encode()) <= MOST_NAME_BYTES
    except UnicodeEncodeError:
        sound = False
    if not sound or str(name).endswith((".", " ")):
        raise RequestError(
            f"filename: must be only the name of a file, of at most {MOST_NAME_BYTES} bytes and "
            f"without a folder, but got {shown(name)}"
        )
    folder = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return cache.disk.folder / "slots" / folder / str(name)
