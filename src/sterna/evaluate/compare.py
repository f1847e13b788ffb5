"""Differences between two models, or two formats of one: logits, distributions and choices."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine import step_tokens
from sterna.engine.divergence import divergence
from sterna.errors import RequestError
from sterna.evaluate.conventions import CONVENTIONS, Convention
from sterna.evaluate.perplexity import Perplexity
from sterna.llm import LLM

__all__ = ["Difference", "compare", "divergence"]

F32 = npt.NDArray[np.float32]
KL_LOGITS = 1 << 20  # logits whose divergence is computed at once, in float64


@dataclass
class Difference:
    """Sums over the positions compared so far; logits are natural-log units, as are divergences.

    n_different: logits whose bits differ; max_abs, sum_abs: largest and summed |difference|; kl:
    KL(A || B) of each position; n_agree: positions where both have the same likeliest token; a, b:
    the results of `perplexity` for each model in the same windows.
    """

    n_positions: int = 0
    n_logits: int = 0
    n_different: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    n_agree: int = 0
    kl: array[float] = field(default_factory=lambda: array("d"), repr=False)
    a: Perplexity = field(default_factory=Perplexity)
    b: Perplexity = field(default_factory=Perplexity)

    @property
    def identical(self) -> bool:
        """Whether every bit of every logit was the same, and there was one."""
        return self.n_logits > 0 and self.n_different == 0

    @property
    def mean_abs(self) -> float:
        """Mean absolute difference of a logit."""
        return self.sum_abs / self.n_logits if self.n_logits else math.nan

    @property
    def top1_agreement(self) -> float:
        """Share of positions where both have the same likeliest token."""
        return self.n_agree / self.n_positions if self.n_positions else math.nan

    def kl_figures(self) -> dict[str, float]:
        """mean, median, p99 and max of KL(A || B) over the positions, in nats; NaN for none."""
        if not self.kl:
            return dict.fromkeys(("mean", "median", "p99", "max"), math.nan)
        values = np.frombuffer(self.kl, np.float64)
        return {
            "mean": math.fsum(values) / values.size,
            "median": float(np.median(values)),
            "p99": float(np.quantile(values, 0.99)),
            "max": float(values.max()),
        }

    def add(self, a: F32, b: F32) -> None:
        """Count logits of both models at the same positions, float32 [n, vocab]."""
        self.n_positions += a.shape[0]
        self.n_logits += a.size
        self.n_agree += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
        different = int((a.view(np.uint32) != b.view(np.uint32)).sum())
        self.n_different += different
        if not different:
            self.kl.extend([0.0] * a.shape[0])
            return
        apart = np.abs(a - b)
        self.max_abs = max(self.max_abs, float(apart.max()))
        self.sum_abs += float(apart.sum(dtype=np.float64))
        rows = max(1, KL_LOGITS // a.shape[1])
        for i in range(0, a.shape[0], rows):
            self.kl.extend(divergence(a[i : i + rows], b[i : i + rows]).tolist())


def compare(
    a: LLM,
    b: LLM,
    texts: Iterable[str],
    *,
    context: int | None = None,
    convention: str = CONVENTIONS[0],
    stride: int | None = None,
    progress: Callable[[float], None] = lambda done_bytes: None,
) -> Difference:
    """Compare two models on the same tokens, at the positions that `perplexity` scores, in its
    windows.

    Memory is bounded by one text, the logits of a step and 8 bytes per position. The result has the
    same bits for any number of threads. Raises RequestError if the vocabularies or the tokens of a
    text differ, or as `perplexity` does.
    """
    sizes = [llm.engine.model.config.vocab_size for llm in (a, b)]
    if sizes[0] != sizes[1]:
        raise RequestError(
            f"compare: both models must have one vocabulary, but got {sizes[0]} and {sizes[1]} "
            "tokens; compare their bits per byte with sterna perplexity"
        )
    limit = min(a.context, b.context)
    how = Convention.of(convention, limit=limit, context=context, stride=stride)
    step = step_tokens(sizes[0])
    opening = a.tokenizer.encode("")[:1] if how.reopens else []
    result, done, started = Difference(), 0, time.perf_counter()
    for text in texts:
        ids = a.tokenizer.encode(text)
        if b.tokenizer.encode(text) != ids:
            raise RequestError(
                f"compare: both tokenizers must give the same tokens, but document "
                f"{result.a.n_documents + 1} differs; compare bits per byte with sterna perplexity"
            )
        n_bytes = len(text.encode())
        for begin, end, scored in how.spans(len(ids), result.a.n_documents + 1):
            window = [*opening, *ids[begin + len(opening) : end]]
            _add_window(result, a, b, window, scored - begin, step)
            progress(done + n_bytes * end / len(ids))
        done += n_bytes
        for side in (result.a, result.b):
            side.n_documents += 1
            side.seconds = time.perf_counter() - started
        progress(done)
    return result


def _add_window(result: Difference, a: LLM, b: LLM, ids: list[int], start: int, step: int) -> None:
    pairs = zip(a.logit_chunks(ids, start, step), b.logit_chunks(ids, start, step), strict=True)
    for (rows_a, targets), (rows_b, _) in pairs:
        for llm, side, rows in ((a, result.a, rows_a), (b, result.b, rows_b)):
            side.add(_native.log_softmax_at(rows, targets, llm.engine.threads))
        result.add(rows_a, rows_b)
