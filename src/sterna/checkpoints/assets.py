"""`Assets`: a model's parts other than weights: tokenizer, chat template, settings."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from sterna.chat import ChatTemplate
from sterna.checkpoints.directory import GENERATION_CONFIG
from sterna.checkpoints.packed_tokenizer import (
    PackedBackend,
    pack_tokenizer,
    read_packed_tokenizer,
)
from sterna.checkpoints.sentence_transformers import lowers_case
from sterna.checkpoints.tekken import BOS, EOS, TEKKEN, Tekken
from sterna.checkpoints.tokenizer_config import apply_tokenizer_config, check_fields
from sterna.files.jsonfile import MAX_CONFIG_BYTES, load_settings
from sterna.tokenizer import Tokenizer, lower_case, read_backend

__all__ = ["Assets", "FileAssets", "FolderAssets"]

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class Assets(ABC):
    """Tokenizer, chat template and settings of a model.

    path: the folder or file that has them. config, tokenizer_config, generation_config: the JSON
    files of these names.
    """

    path: Path
    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]

    @property
    @abstractmethod
    def generation_file(self) -> Path:
        """The file of `generation_config`, for errors."""

    @property
    @abstractmethod
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer; ModelFormatError if it is missing or damaged."""

    @abstractmethod
    def template(self) -> ChatTemplate | None:
        """Read the chat template, None if there is none; ModelFormatError if it is malformed."""

    @abstractmethod
    def as_folder(self) -> contextlib.AbstractContextManager[Path]:
        """Provide a folder with tokenizer.json and the others, in the Hugging Face layout."""


@dataclass(frozen=True)
class FolderAssets(Assets):
    """Assets of a folder in the Hugging Face layout; the tokenizer may be Mistral's tekken.json."""

    @classmethod
    def of(cls, folder: Path, config: dict[str, Any]) -> FolderAssets:
        """Read the small JSON files of a folder. config: its config.json. ModelFormatError."""
        settings, generation = (
            load_settings(folder / name) for name in (TOKENIZER_CONFIG, GENERATION_CONFIG)
        )
        made = cls(folder, config, settings, generation)
        if not made._is_tekken:
            return made
        return cls(folder, config, {"bos_token": BOS, "eos_token": EOS, **settings}, generation)

    @property
    def generation_file(self) -> Path:
        return self.path / GENERATION_CONFIG

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer.json, even if it is a broken link, or a tekken.json."""
        return os.path.lexists(self.path / TOKENIZER) or self._is_tekken

    @property
    def _is_tekken(self) -> bool:
        return not os.path.lexists(self.path / TOKENIZER) and (self.path / TEKKEN).exists()

    @cached_property
    def _tekken(self) -> Tekken:
        return Tekken.read(self.path / TEKKEN)

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer of tokenizer.json, or else of tekken.json."""
        file = self.path / (TEKKEN if self._is_tekken else TOKENIZER)
        configs = [self.generation_config, self.config]
        check_fields(self.tokenizer_config, self.path / TOKENIZER_CONFIG)
        packed = self._packed()
        backend, special = (packed, packed.special) if packed else (self._library(), None)
        return Tokenizer.from_parts(file, backend, self.tokenizer_config, configs, special)

    def pack_tokenizer(self) -> None:
        """Write the packed form of tokenizer.json next to it, unless it is there; raises as
        `tokenizer`."""
        if os.path.lexists(self.path / TOKENIZER) and self._packed() is None:
            lower = lowers_case(self.path)
            pack_tokenizer(self.path, self._library(), self.tokenizer_config, lower)

    def _packed(self) -> PackedBackend | None:
        lower = lowers_case(self.path)
        return read_packed_tokenizer(self.path, self.tokenizer_config, lower, self._library)

    def _library(self) -> tokenizers.Tokenizer:
        backend = self._tekken.backend if self._is_tekken else read_backend(self.path / TOKENIZER)
        if lowers_case(self.path):
            lower_case(backend)
        apply_tokenizer_config(backend, self.tokenizer_config, self.path / TOKENIZER_CONFIG)
        return backend

    def template(self) -> ChatTemplate | None:
        """Read the template of the folder's files; that of tekken.json's version without one."""
        template = ChatTemplate.load(self.path, self.tokenizer_config)
        if template is not None or not self._is_tekken or self._tekken.template is None:
            return template
        return ChatTemplate.from_source(
            self._tekken.template, self.tokenizer_config, self.path / TEKKEN
        )

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        """Provide the folder; a temporary one with a tokenizer.json in place of tekken.json."""
        if not self._is_tekken:
            yield self.path
            return
        import shutil  # only where a model is written

        texts = {TOKENIZER: _quick_to_read(self._tekken.backend.to_str())}
        if (template := self.template()) is not None:
            texts[CHAT_TEMPLATE] = template.source
        texts[TOKENIZER_CONFIG] = json.dumps(self.tokenizer_config)
        with _temporary(texts) as folder:
            for file in self.path.iterdir():
                small = file.is_file() and file.stat().st_size <= MAX_CONFIG_BYTES
                if small and not (folder / file.name).exists():
                    shutil.copyfile(file, folder / file.name)
            yield folder


@dataclass(frozen=True)
class FileAssets(Assets):
    """Assets within a single file: GGUF."""

    backend: tokenizers.Tokenizer

    @property
    def generation_file(self) -> Path:
        return self.path

    @property
    def has_tokenizer(self) -> bool:
        """True: without one the file is refused."""
        return True

    def tokenizer(self) -> Tokenizer:
        """Make the tokenizer of the file's vocabulary."""
        configs = [self.generation_config, self.config]
        check_fields(self.tokenizer_config, self.path)
        apply_tokenizer_config(self.backend, self.tokenizer_config, self.path)
        return Tokenizer.from_parts(self.path, self.backend, self.tokenizer_config, configs)

    def template(self) -> ChatTemplate | None:
        """Make the template of the file's metadata."""
        return ChatTemplate.from_settings(self.path, self.tokenizer_config)

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        """Provide a temporary folder."""
        texts = {
            TOKENIZER: _quick_to_read(self.backend.to_str()),
            TOKENIZER_CONFIG: json.dumps(self.tokenizer_config),
            GENERATION_CONFIG: json.dumps(self.generation_config),
        }
        with _temporary(texts) as folder:
            yield folder


@contextlib.contextmanager
def _temporary(texts: Mapping[str, str]) -> Iterator[Path]:
    """Make a folder of files with these texts, and remove it at the end."""
    import shutil  # these two only where a model is written
    import tempfile

    # Not a TemporaryDirectory: the interpreter removes those at its end, before the thread that
    # writes the cache has copied the files.
    folder = Path(tempfile.mkdtemp(prefix="sterna-"))
    try:
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _quick_to_read(tokenizer: str) -> str:
    """Return a tokenizer.json with merges as texts "a b", which the library reads in half the time.

    Merges with a space, or ones that look like the first line of a merges.txt, have no such form.
    """
    file = json.loads(tokenizer)
    merges = file["model"].get("merges")
    if not merges or any(
        " " in part or part.startswith("#version") for pair in merges for part in pair
    ):
        return tokenizer
    file["model"]["merges"] = [" ".join(pair) for pair in merges]
    return json.dumps(file, ensure_ascii=False, separators=(",", ":"))
