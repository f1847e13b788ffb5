"""`Assets`: a model's parts other than weights: tokenizer, chat template, settings."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from sterna.chat import ChatTemplate
from sterna.checkpoints.directory import GENERATION_CONFIG
from sterna.checkpoints.sentence_transformers import lowers_case
from sterna.checkpoints.tokenizer_config import apply_tokenizer_config
from sterna.files.jsonfile import load_settings
from sterna.tokenizer import Tokenizer, lower_case, read_backend

__all__ = ["Assets", "FileAssets", "FolderAssets"]

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


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
    """Assets of a folder in the Hugging Face layout."""

    @classmethod
    def of(cls, folder: Path, config: dict[str, Any]) -> FolderAssets:
        """Read the small JSON files of a folder. config: its config.json. ModelFormatError."""
        settings = (load_settings(folder / name) for name in (TOKENIZER_CONFIG, GENERATION_CONFIG))
        return cls(folder, config, *settings)

    @property
    def generation_file(self) -> Path:
        return self.path / GENERATION_CONFIG

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer.json, even if it is a broken link."""
        return os.path.lexists(self.path / TOKENIZER)

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer of tokenizer.json."""
        file = self.path / TOKENIZER
        configs = [self.generation_config, self.config]
        backend = read_backend(file)
        if lowers_case(self.path):
            lower_case(backend)
        apply_tokenizer_config(backend, self.tokenizer_config, self.path / TOKENIZER_CONFIG)
        return Tokenizer.from_parts(file, backend, self.tokenizer_config, configs)

    def template(self) -> ChatTemplate | None:
        """Read the template of the folder's files."""
        return ChatTemplate.load(self.path, self.tokenizer_config)

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        yield self.path


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
        apply_tokenizer_config(self.backend, self.tokenizer_config, self.path)
        return Tokenizer.from_parts(self.path, self.backend, self.tokenizer_config, configs)

    def template(self) -> ChatTemplate | None:
        """Make the template of the file's metadata."""
        return ChatTemplate.from_settings(self.path, self.tokenizer_config)

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        """Provide a temporary folder."""
        import shutil  # these two only where a model is written
        import tempfile

        texts = {
            TOKENIZER: _quick_to_read(self.backend.to_str()),
            TOKENIZER_CONFIG: json.dumps(self.tokenizer_config),
            GENERATION_CONFIG: json.dumps(self.generation_config),
        }
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
