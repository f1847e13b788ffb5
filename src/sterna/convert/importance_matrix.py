"""The importance matrix: mean squares of layers' inputs, by which `formats.weighted` rounds.

    parts = parts_of(file, source)
    squares = calibrate(source, parts.used)       the model runs as it is stored; sums are kept
    convert(source, out, "q4_k", squares=squares)

A layer's program adds up the squares of its input as it runs (`Graph.observed`), in double and in
the order of the tokens: the bits are the same on every machine and for any number of threads. The
experts of a layer share one sum, over all rows that any of them reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna import formats, loading, models
from sterna.chat import ChatTemplate
from sterna.chat.documents import Document, documents
from sterna.checkpoints.resolve import resolve
from sterna.convert.plan import assets_of, plan
from sterna.engine import Engine
from sterna.engine import Sequence as EngineSequence
from sterna.errors import RequestError
from sterna.files.reading import read_file
from sterna.formats import Experts, PackedWeight
from sterna.formats.weighted import check_weighted
from sterna.weights.sources import STACKED, Linear, Stacking, WeightSource
from sterna.weights.wrapped import WrappedWeights

__all__ = ["CalibrationTexts", "calibrate", "parts_of", "require_calibrated", "spread"]

F32 = npt.NDArray[np.float32]
WINDOW = 512  # tokens read together
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


def require_calibrated(format: str | None, method: str | None = None) -> None:
    """Raise RequestError for a format or a method of powers of two that ignores squares."""
    if format is None:
        raise RequestError("calibrate: needs a format to round to, but got none")
    chosen = formats.get(format)
    check_weighted(chosen if method is None else formats.with_method(chosen, method))


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
    loaded, names = _load(source, threads, i2s)
    model = replace(loaded, graph=loaded.graph.observed())
    engine = Engine(model, threads=threads, deterministic=True, skip_zeros=False)
    assets = assets_of(loaded)
    tokenizer = assets.tokenizer()
    done = 0
    for window in _windows((tokenizer.encode(text) for text in spread(texts)), engine.context):
        sequence = EngineSequence()
        try:
            engine.step([(sequence, window[: tokens - done], 0)])
        finally:
            engine.kv_cache.release(sequence)
        done += len(window[: tokens - done])
        progress(done, tokens)
        if done == tokens:
            break
    if not done:
        raise RequestError("calibrate: must have a text with tokens, but got none")
    sums: dict[str, list[tuple[int, npt.NDArray[np.float64]]]] = {}
    for one, readers in zip(engine.square_sums, model.graph.observed_by(), strict=True):
        for name in {names[weight] for weight in readers if weight in names}:
            sums.setdefault(name, []).append(one)
    return {name: _mean(several) for name, several in sums.items()}


def _mean(several: list[tuple[int, npt.NDArray[np.float64]]]) -> F32:
    """Average over all rows that a weight has read, in one place of the model or several."""
    rows = sum(count for count, _ in several)
    return np.asarray(sum(columns for _, columns in several) / max(rows, 1), np.float32)


def spread(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts from all over the list: every 16th, then every 16th from the next start on."""
    for first in range(16):
        yield from texts[first::16]


def _windows(texts: Iterable[Sequence[int]], context: int) -> Iterator[Sequence[int]]:
    size = min(WINDOW, context)
    for tokens in texts:
        for begin in range(0, len(tokens), size):
            yield tokens[begin : begin + size]


@dataclass(frozen=True)
class _Named(WrappedWeights):
    """A source of weights that notes the name under which each was requested."""

    names: dict[PackedWeight, str] = field(default_factory=dict)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return the source's weights, and keep their name."""
        made = super().matrix(name, parts)
        self.names.update((weight, name) for weight in made)
        return made

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Return the source's weights, and keep their name."""
        made = super().experts(name, parts, count, stacking)
        self.names.update((experts.weight, name) for experts in made)
        return made


def _load(
    source: str | Path, threads: int | None, i2s: str | None
) -> tuple[loading.Model, dict[PackedWeight, str]]:
    """Load a model; returns it, and the names under which it requested its weights."""
    names: dict[PackedWeight, str] = {}

    def wrap(weights: WeightSource) -> WeightSource:
        return _Named(weights, names)

    path = resolve(source, inspect=models.require_architecture)
    return loading.load(path, cached=False, threads=threads, i2s=i2s, wrap=wrap), names
