"""Perplexity and bits per byte of a model on texts, in windows of its context."""

from __future__ import annotations

import hashlib
import math
import sysconfig
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sterna.errors import NonFiniteError, RequestError, reason
from sterna.evaluate.conventions import CONVENTIONS, Convention
from sterna.files.reading import require_regular

__all__ = [
    "Perplexity",
    "held_out_stdlib",
    "is_held_out",
    "perplexity",
    "read_text",
    "stdlib_sources",
    "text_files",
]

#: The corpus of the built-in model (examples/train_nano.py) leaves out paths with these parts.
EXCLUDED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"})


class _Model(Protocol):
    """The members of an `LLM` that perplexity needs."""

    @property
    def context(self) -> int: ...
    @property
    def tokenizer(self) -> Any: ...
    def logprobs(self, tokens: list[int], start: int = 1) -> Any: ...


@dataclass
class Perplexity:
    """Sums over the documents so far; nats are natural-log units, bytes those of the UTF-8 text.

    n_tokens counts the scored ones: all of a document but its first, which is BOS where the
    tokenizer adds one, or what the convention says. Where it adds none, the first token's bytes are
    not counted either; nor are any where the convention leaves out more.
    """

    n_documents: int = 0
    n_tokens: int = 0
    n_bytes: int = 0
    nats: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0

    def add(self, logprobs: Iterable[float]) -> None:
        """Count tokens of these natural-log probabilities; NonFiniteError if one is not finite."""
        values = [float(x) for x in logprobs]
        self.nats -= math.fsum(values)
        self.squares += math.fsum(x * x for x in values)
        self.n_tokens += len(values)
        if not math.isfinite(self.nats):
            raise NonFiniteError(
                "perplexity: log-probabilities must be finite, but document "
                f"{self.n_documents + 1} gives {self.nats}; check the model's weights"
            )

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
    def stderr(self) -> float:
        """Standard error of nats_per_token, as if the tokens were drawn independently.

        They are not, so it is a little small; llama.cpp prints the same.
        """
        if self.n_tokens < 2:
            return math.nan
        variance = max(self.squares / self.n_tokens - self.nats_per_token**2, 0.0)
        return math.sqrt(variance / (self.n_tokens - 1))

    @property
    def perplexity_stderr(self) -> float:
        """Standard error of the perplexity, to first order: its own times that of the nats."""
        return self.perplexity * self.stderr

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs for a byte of text: independent of the tokenizer.

        NaN where the convention does not score all of a text.
        """
        return self.nats / math.log(2) / self.n_bytes if self.n_bytes else math.nan


def perplexity(
    llm: _Model,
    texts: Iterable[str],
    *,
    context: int | None = None,
    convention: str = CONVENTIONS[0],
    stride: int | None = None,
    progress: Callable[[float], None] = lambda done_bytes: None,
) -> Perplexity:
    """Score each text as one document; memory is bounded by one text and one window.

    context, convention, stride: as in `Convention.of`, for the model's context. progress is called
    with the bytes done. The same bits for any number of threads. Raises RequestError for sizes out
    of range or a text too short for the convention, NonFiniteError if the model gives NaN.
    """
    how = Convention.of(convention, limit=llm.context, context=context, stride=stride)
    result, started, done = Perplexity(), time.perf_counter(), 0
    opening = llm.tokenizer.encode("")[:1] if how.reopens else []
    for text in texts:
        ids = llm.tokenizer.encode(text)
        n_bytes = len(text.encode())
        for begin, end, scored in how.spans(len(ids), result.n_documents + 1):
            window = [*opening, *ids[begin + len(opening) : end]]
            result.add(llm.logprobs(window, start=scored - begin))
            progress(done + n_bytes * end / len(ids))
        done += n_bytes
        result.n_documents += 1
        if how.scores_all:
            result.n_bytes += n_bytes - len(llm.tokenizer.decode(ids[:1]).encode())
        result.seconds = time.perf_counter() - started
        progress(done)
    return result


# --------------------------------------------------------------------------------------- texts


def read_text(path: Path, errors: str = "strict") -> str:
    """Read the text of a UTF-8 file with its line endings; RequestError if it is not one."""
    require_regular(path)
    try:
        return path.read_bytes().decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path}: must be UTF-8 text, but byte {error.start} is not; convert it first"
        ) from None
    except OSError as error:
        raise RequestError(
            f"{path}: must be a readable file, but got {reason(error)}; check the path"
        ) from None


def text_files(folder: Path) -> list[Path]:
    """List the UTF-8 files below a folder by their paths, without hidden and binary ones.

    Raises RequestError if it is not a folder or holds none.
    """
    if not folder.is_dir():
        raise RequestError(f"{folder}: must be a folder, but is not; use --file for a file")
    files = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file() and _is_text(path):
            files.append(path)
    if not files:
        raise RequestError(f"{folder}: must hold UTF-8 text files, but has none; check the path")
    return files


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
    """List (posix path below the library's folder, path) of the interpreter's own sources.

    Tests and installed packages are left out; sorted. Empty where there is no folder of sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    sources = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not EXCLUDED.intersection(relative.parts[:-1]):
            sources.append((relative.as_posix(), path))
    return sorted(sources)


def held_out_stdlib() -> list[Path]:
    """List the running interpreter's standard-library sources that the built-in model never saw.

    Raises RequestError where the standard library is not a folder of sources.
    """
    files = [path for relative, path in stdlib_sources() if is_held_out(relative)]
    if not files:
        raise RequestError(
            f"{sysconfig.get_paths()['stdlib']}: must hold Python's sources, but has none; "
            "use --dir instead"
        )
    return files
