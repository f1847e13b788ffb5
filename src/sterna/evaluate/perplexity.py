"""Perplexity and bits per byte of a model on texts, in overlapping windows of its context."""

from __future__ import annotations

import hashlib
import math
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sterna.errors import NonFiniteError, RequestError

__all__ = [
    "Perplexity",
    "held_out_stdlib",
    "is_held_out",
    "perplexity",
    "read_text",
    "stdlib_sources",
    "text_files",
    "windows",
]

#: The corpus of the built-in model (examples/train_nano.py) leaves out paths with these parts.
EXCLUDED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"})


class _Model(Protocol):
    """What is needed of an `LLM`."""

    @property
    def context(self) -> int: ...
    @property
    def tokenizer(self) -> Any: ...
    def logprobs(self, tokens: list[int], start: int = 1) -> Any: ...


@dataclass
class Perplexity:
    """Sums over the documents so far; nats are natural-log units, bytes those of the UTF-8 text.

    n_tokens counts the scored ones: all of a document but its first, which is BOS where the
    tokenizer adds one. Where it adds none, the first token's bytes are not counted either.
    """

    n_documents: int = 0
    n_tokens: int = 0
    n_bytes: int = 0
    nats: float = 0.0
    seconds: float = 0.0

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-probability of a token."""
        return self.nats / self.n_tokens if self.n_tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        try:
            return math.exp(self.nats_per_token)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs for a byte of text: independent of the tokenizer."""
        return self.nats / math.log(2) / self.n_bytes if self.n_bytes else math.nan


def windows(n_tokens: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first scored) of each window of a document: every token but 0 scored once.

    Windows start half a context apart, so a scored token sees at least half a context, or all
    there is before it.
    """
    stride = max(context // 2, 1)
    begin, scored = 0, 1
    while scored < n_tokens:
        end = min(begin + context, n_tokens)
        yield begin, end, scored
        begin, scored = begin + stride, end


def perplexity(
    llm: _Model,
    texts: Iterable[str],
    *,
    context: int | None = None,
    progress: Callable[[float], None] = lambda done_bytes: None,
) -> Perplexity:
    """Scores each text as one document; memory is bounded by one text and one window.

    context: tokens in a window, default the model's. progress is called with the bytes done.
    Raises RequestError for a context out of range, NonFiniteError if the model gives NaN.
    """
    context = llm.context if context is None else context
    if not 2 <= context <= llm.context:
        raise RequestError(
            f"context: must lie in 2..{llm.context}, the model's, but got {context}; lower it"
        )
    result, started, done = Perplexity(), time.perf_counter(), 0
    for text in texts:
        ids = llm.tokenizer.encode(text)
        n_bytes = len(text.encode())
        for begin, end, scored in windows(len(ids), context):
            logprobs = llm.logprobs(ids[begin:end], start=scored - begin)
            result.nats -= math.fsum(float(x) for x in logprobs)
            result.n_tokens += end - scored
            if not math.isfinite(result.nats):
                raise NonFiniteError(
                    "perplexity: log-probabilities must be finite, but document "
                    f"{result.n_documents + 1} gives {result.nats}; check the model's weights"
                )
            progress(done + n_bytes * end / len(ids))
        done += n_bytes
        result.n_documents += 1
        result.n_bytes += n_bytes - len(llm.tokenizer.decode(ids[:1]).encode())
        result.seconds = time.perf_counter() - started
        progress(done)
    return result


# --------------------------------------------------------------------------------------- texts


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a UTF-8 file with its line endings; RequestError if it is not one."""
    try:
        return path.read_bytes().decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path}: must be UTF-8 text, but byte {error.start} is not; convert it first"
        ) from None
    except OSError as error:
        raise RequestError(
            f"{path}: must be a readable file, but got: {error.strerror}; check the path"
        ) from None


def text_files(folder: Path) -> list[Path]:
    """The UTF-8 files below a folder in the order of their paths, hidden and binary ones left out.

    Raises RequestError if it is not a folder or holds none.
    """
    if not folder.is_dir():
        raise RequestError(f"{folder}: must be a folder, but is not; use --file for a file")
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file() and _is_text(path):
            found.append(path)
    if not found:
        raise RequestError(f"{folder}: must hold UTF-8 text files, but has none; check the path")
    return found


def _is_text(path: Path) -> bool:
    try:
        text = read_text(path)
    except RequestError:
        return False
    return bool(text) and "\0" not in text


def is_held_out(relative: str) -> bool:
    """Whether the built-in model was not trained on this file: SHA-256(posix path) mod 5 = 0."""
    return int(hashlib.sha256(relative.encode()).hexdigest(), 16) % 5 == 0


def stdlib_sources() -> list[tuple[str, Path]]:
    """(posix path below the library's folder, path) of the running interpreter's own sources.

    Tests and installed packages are left out; sorted. Empty where there is no folder of sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not EXCLUDED.intersection(relative.parts[:-1]):
            found.append((relative.as_posix(), path))
    return sorted(found)


def held_out_stdlib() -> list[Path]:
    """The running interpreter's standard-library sources that the built-in model never saw.

    Raises RequestError where the standard library is not a folder of sources.
    """
    found = [path for relative, path in stdlib_sources() if is_held_out(relative)]
    if not found:
        raise RequestError(
            f"{sysconfig.get_paths()['stdlib']}: must hold Python's sources, but has none; "
            "use --dir instead"
        )
    return found
