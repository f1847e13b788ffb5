"""`PrefixPack`: the pages of a prefix in one file, which any machine with the same model can read.

A pack is a ZIP archive without compression: manifest.json, the tokens (int32), and a file of the
disk cache for each page of 64 tokens, each with its own checksum.
"""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.engine.adapter import is_of_adapter
from sterna.engine.kv_cache.manager import KVCacheManager
from sterna.engine.kv_cache.page_file import PageFiles, StoredPage
from sterna.engine.kv_cache.sequence import PAGE
from sterna.errors import RequestError, SternaError, shown
from sterna.files.jsonfile import parse_json
from sterna.files.writing import replacing

__all__ = ["KINDS", "PackText", "PrefixPack", "chain_names", "write_pack"]

I32 = npt.NDArray[np.int32]
#: What the text of a pack is: a chat's system prompt, or the beginning of prompts.
KINDS = ("system", "text")
_VERSION = 1
_MANIFEST, _TOKENS, _PAGE = "manifest.json", "tokens", "pages/{:06}"
_MAX_MANIFEST_BYTES = 64 << 20  # it has the text
#: What reading an archive of another kind or a part of one raises.
_UNREADABLE = (
    KeyError,
    OSError,
    TypeError,
    ValueError,
    EOFError,
    NotImplementedError,
    SternaError,
    zipfile.BadZipFile,
)
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # so that equal packs have equal bytes


class PackText(NamedTuple):
    """What a pack was made of. kind: one of KINDS; model: the name of its model."""

    kind: str
    text: str
    model: str


class PrefixPack:
    """A pack for one engine; any thread may read it.

    kv_cache: of the engine; identity: `Engine.identity`. Raises RequestError for a file that is no
    whole pack, or one of another model or other settings.

    Attributes:
        files: Names and checks pages.
        about: What the pack was made of.
        tokens: The prefix, int32.
    """

    def __init__(self, path: Path, kv_cache: KVCacheManager, identity: tuple[object, ...]) -> None:
        self.path = path
        self.files: PageFiles = PageFiles(kv_cache, identity)
        self._lock = threading.Lock()
        try:
            file = path.open("rb")
        except OSError as error:
            raise RequestError(f"prefix: {path}: {error.strerror or error}") from None
        try:
            self._archive = zipfile.ZipFile(file)
            if self._archive.getinfo(_MANIFEST).file_size > _MAX_MANIFEST_BYTES:
                raise ValueError("manifest")
            manifest = parse_json(self._archive.read(_MANIFEST), path)
            self.about: PackText = _about(manifest)
            tokens = np.frombuffer(self._archive.read(_TOKENS), "<i4").astype(np.int32)
            places = [self._archive.getinfo(_PAGE.format(i)) for i in range(len(tokens) // PAGE)]
        except _UNREADABLE:
            file.close()
            raise RequestError(
                f"prefix: must be a whole file of `sterna prefix`, but {shown(str(path))} is not"
            ) from None
        if manifest.get("root") != self.files.root.hex():
            raise RequestError(
                f"prefix: must be of this model with these settings, but {shown(str(path))} is of "
                f"{self.about.model} with {manifest.get('settings')}"
            )
        self.tokens: I32 = tokens
        names = chain_names(self.files, self.files.root_of(""), tokens)
        self._places = dict(zip((name for name, _ in names), places, strict=True))

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def root_of(self, salt: str) -> bytes:
        """Return the name before the first page; pages with an adapter's salt are not in a pack."""
        return self.files.root_of(salt if is_of_adapter(salt) else "")

    def get_all(self, pages: Iterable[tuple[bytes, bytes]]) -> Iterator[StoredPage | None]:
        """Yield the page of each (name, tokens) in turn; None if it is not here or damaged."""
        for name, tokens in pages:
            place = self._places.get(name)
            yield None if place is None else self._read(place, name, tokens)

    def _read(self, place: zipfile.ZipInfo, name: bytes, tokens: bytes) -> StoredPage | None:
        try:
            with self._lock:
                data = self._archive.read(place)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            data = b""
        page = self.files.checked(np.frombuffer(data, np.uint8), name, tokens)
        if page is None:
            import logging

            logging.getLogger("sterna.engine").warning(
                "prefix: %s: a page is damaged and is computed again", self.path
            )
        return page


def chain_names(files: PageFiles, above: bytes, tokens: I32) -> list[tuple[bytes, bytes]]:
    """Return (name, tokens) of each full page of tokens that follow the page `above`."""
    names = []
    for i in range(0, len(tokens) - PAGE + 1, PAGE):
        key = tokens[i : i + PAGE].tobytes()
        above = files.name(above, key)
        names.append((above, key))
    return names


def write_pack(
    path: Path, files: PageFiles, tokens: I32, pages: Iterable[bytes], about: PackText, **facts: Any
) -> None:
    """Write a pack, whole or not at all. pages: the bytes of the files of all full pages.

    facts: more fields of the manifest. Raises OSError.
    """
    manifest = {"version": _VERSION, "root": files.root.hex(), **facts, **about._asdict()}
    with (
        replacing(path, 0) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        archive.writestr(zipfile.ZipInfo(_MANIFEST, _FIRST_DAY), json.dumps(manifest, indent=1))
        archive.writestr(zipfile.ZipInfo(_TOKENS, _FIRST_DAY), tokens.astype("<i4").tobytes())
        for i, data in enumerate(pages):
            archive.writestr(zipfile.ZipInfo(_PAGE.format(i), _FIRST_DAY), data)


def _about(manifest: dict[str, Any]) -> PackText:
    about = PackText(*(manifest[field] for field in PackText._fields))
    if manifest["version"] != _VERSION or about.kind not in KINDS:
        raise ValueError("version or kind")
    if not all(isinstance(value, str) for value in about):
        raise ValueError("fields")
    return about
