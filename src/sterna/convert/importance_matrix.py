"""The importance matrix: mean squares of layers' inputs, by which `formats.weighted` rounds.

    parts = parts_of(file, source)
    squares = calibrate(source, parts.used)       the model runs as it is stored; sums are kept
    convert(source, out, "q4_k", squares=squares)

A layer's program adds up the squares of its input as it runs (`Graph.observed`), in double and in
the order of the tokens: the bits are the same on every machine and for any number of threads. The
experts of a layer share one sum, over all rows that any of them reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.chat import ChatTemplate
from sterna.chat.documents import Document, documents
from sterna.checkpoints.resolve import resolve
from sterna.convert.plan import assets_of, plan
from sterna.convert.running import Running, spread
from sterna.errors import RequestError
from sterna.files.reading import read_file
from sterna.formats.weighted import check_weighted

__all__ = ["CalibrationTexts", "calibrate", "parts_of", "require_calibrated", "spread"]

F32 = npt.NDArray[np.float32]
EVERY = 5  # every fifth piece is held out
PIECE = 2000  # characters of a piece of a plain text, about a window of tokens
MAX_BYTES = 1 << 30


class CalibrationTexts(NamedTuple):
    """Texts to calibrate on, and held-out texts, a quarter as many."""

    used: list[str]
    held_out: list[str]


def parts_of(file: Path, source: str | Path) -> CalibrationTexts:
    """Split a file into pieces and hold every fifth out.

    file: UTF-8 text, cut into 2,000 characters, or .jsonl with {"text": …} or {"messages": …} on a
    line; the template of the model `source` turns messages into text. Raises RequestError for fewer
    than five pieces or messages without a template, ModelFormatError for any other line.
    """
    if file.suffix == ".jsonl":
        template = assets_of(plan(resolve(source))[0]).template()
        pieces = [_text(file, document, template) for document in documents(file)]
    else:
        try:
            pieces = list(_pieces(read_file(file, MAX_BYTES).decode("utf-8-sig")))
        except UnicodeDecodeError as e:
            raise RequestError(
                f"{file}: must be UTF-8 text, but byte {e.start} is not; convert it first"
            ) from None
    held_out = pieces[EVERY - 1 :: EVERY]
    if not held_out:
        raise RequestError(
            f"{file}: must have five lines at least, of which one is held out, but has "
            f"{len(pieces)}; take a longer text"
        )
    return CalibrationTexts([p for i, p in enumerate(pieces) if i % EVERY != EVERY - 1], held_out)


def _text(file: Path, document: Document, template: ChatTemplate | None) -> str:
    if document.text is not None:
        return document.text
    if template is None:
        raise RequestError(f"{file}: has messages, but the model has no chat template")
    try:
        return template.render(document.messages, False)
    except RequestError as e:
        raise RequestError(f"{file}: line {document.line}: {e}") from None


def _pieces(text: str) -> Iterator[str]:
    """Split a text into pieces of whole lines, at least ten if it has as many."""
    size = min(PIECE, max(1, len(text) // (2 * EVERY)))
    piece = ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= size:
            yield piece
            piece = ""
    if piece.strip():
        yield piece


def require_calibrated(
    format: str | None, method: str | None = None, what: str = "calibrate"
) -> None:
    """Raise RequestError for a format or a method of powers of two that ignores squares.

    what: the argument that needs squares, for messages.
    """
    if format is None:
        raise RequestError(f"{what}: needs a format to round to, but got none")
    chosen = formats.get(format)
    check_weighted(chosen if method is None else formats.with_method(chosen, method), what)


def calibrate(
    source: str | Path,
    texts: Sequence[str],
    *,
    tokens: int = 16384,
    threads: int | None = None,
    i2s: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, F32]:
    """Measure E[x_k²] of the input of each layer of a model, float32 [K], by the weight's name.

    The model runs as it is stored, on texts from all over the list until `tokens` have been read,
    in windows of 512. progress: called with the number of tokens done. Raises as `loading.load`,
    RequestError if the texts have no token, NonFiniteError if the model gives NaN.
    """
    running = Running.of(source, threads, i2s)
    graph, done = running.model.graph.observed(), 0
    program = running.engine.compiled(graph)
    for window in running.windows(texts, tokens):
        running.engine.run_variant(program, window, 0)
        done += len(window)
        progress(done, tokens)
    names = running.names
    sums: dict[str, list[tuple[int, npt.NDArray[np.float64]]]] = {}
    for one, readers in zip(program.square_sums, graph.observed_by(), strict=True):
        for name in {names[weight] for weight in readers if weight in names}:
            sums.setdefault(name, []).append(one)
    return {name: _mean(several) for name, several in sums.items()}


def _mean(several: list[tuple[int, npt.NDArray[np.float64]]]) -> F32:
    """Average over all rows that a weight has read, in one place of the model or several."""
    rows = sum(count for count, _ in several)
    return np.asarray(sum(columns for _, columns in several) / max(rows, 1), np.float32)
