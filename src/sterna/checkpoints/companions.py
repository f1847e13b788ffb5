"""What a model needs besides its weights, where a single file holds all of it: GGUF."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

__all__ = ["Companions"]


@dataclass(frozen=True)
class Companions:
    """The tokenizer and the settings of a model, as the files of a folder would hold them.

    file: where they came from, for errors; tokenizer_config has the chat template.
    """

    file: Path
    backend: tokenizers.Tokenizer
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        """A temporary folder with tokenizer.json and the others, in the Hugging Face layout."""
        texts = {
            "tokenizer.json": self.backend.to_str(),
            "tokenizer_config.json": json.dumps(self.tokenizer_config),
            "generation_config.json": json.dumps(self.generation_config),
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
