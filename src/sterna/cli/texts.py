"""Options of commands that read texts: the files, their windows, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from sterna.cli.decorators import Option, combined, flag, option
from sterna.errors import RequestError

__all__ = ["Texts", "piped_text", "text_options"]

MAX_STDIN_BYTES = 64 << 20  # far beyond any context

#: Texts and conventions; `Texts.of` takes the former.
text_options: Option = combined(
    option("--file files", "A UTF-8 text file.", type=click.Path(path_type=Path), multiple=True),
    option("--dir folder", "A folder: all text files below it.", type=click.Path(path_type=Path)),
    flag("--stdlib", "The Python sources held out from the built-in model's training."),
    option("--limit", "Number of files to use, from the first on.", type=click.IntRange(min=1)),
    option(
        "--convention",
        "Which tokens are scored. sterna: all, in windows that overlap by half; llama.cpp: "
        "the second half of disjoint windows, as its tool does; transformers: all, in windows "
        "--stride apart, as its guide does.",
        type=click.Choice(["sterna", "llama.cpp", "transformers"]),
        shown="sterna",
    ),
    option(
        "--stride",
        "Tokens between the starts of two windows; default: half a window, with transformers "
        "at most 512, with llama.cpp none.",
        type=int,
    ),
)


def piped_text() -> str:
    """Read all of stdin; RequestError if it is too much or no UTF-8."""
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise RequestError(f"stdin: must be at most {MAX_STDIN_BYTES} bytes; shorten the input")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"stdin: must be UTF-8 text, but byte {error.start} is not; convert it first"
        ) from None


@dataclass(frozen=True)
class Texts:
    """The files that a command reads; each is a separate document."""

    source: str
    paths: list[Path]
    errors: str  # the error handler for bytes that are not UTF-8

    @classmethod
    def of(cls, options: dict[str, Any]) -> Texts:
        """Take the texts out of the options; RequestError for an unreadable file."""
        from sterna.evaluate.perplexity import held_out_stdlib, read_text, text_files

        files, folder = options.pop("files"), options.pop("folder")
        stdlib, limit = options.pop("stdlib"), options.pop("limit")
        if sum([bool(files), folder is not None, stdlib]) != 1:
            raise click.UsageError("texts: must be one of --file, --dir and --stdlib")
        paths = held_out_stdlib() if stdlib else text_files(folder) if folder else list(files)
        for path in files:
            read_text(path)  # all are checked before the first takes its time
        source = "stdlib" if stdlib else str(folder or ", ".join(map(str, files)))
        return cls(source, paths[:limit], "replace" if stdlib else "strict")  # as in training

    def __iter__(self) -> Iterator[str]:
        """Yield the texts, read as they are needed."""
        from sterna.evaluate.perplexity import read_text

        return (read_text(path, self.errors) for path in self.paths)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)
