"""How much a model's answers change if a matrix is rounded: the KL divergence that it costs.

For small changes d of a matrix, the KL divergence of the model's next token is a quadratic form of
d. It is taken to be g · Σ_rows d H d^T, where H = E[x x^T] are the second moments of the layer's
inputs (K-FAC's form, arXiv 1503.05671, with one number g for the effect of its outputs). g is
measured: the matrix is rounded to eight levels, the whole model runs with this one matrix changed,
and g is the KL divergence over Σ d H d^T. The loss of a format is then g times the Σ d H d^T of
some rows rounded to it, with error feedback as they will be.

Layers of one kind are alike. Of each kind, some from the first to the last are measured; g of the
others lies between theirs, and their errors with feedback are those without it, times what these
are apart in the measured layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sterna import formats, ops
from sterna.convert.candidates import Unit
from sterna.convert.running import Running, whole_head
from sterna.engine.divergence import divergence
from sterna.formats import Format, PackedWeight, codec, weighted
from sterna.formats.feedback import Feedback
from sterna.graph.ops import Op, WeightOp
from sterna.weights.rounding import Rows, row_chunks

__all__ = ["PER_KIND", "Probe", "format_errors", "kinds_of", "measured_of", "sampled"]

F32 = npt.NDArray[np.float32]
PER_KIND = 6  # layers of a kind that are measured
ROWS = 64  # of a matrix that are rounded to each format
LEVELS, GROUP = 8, 32  # of the change that is tried
MOST_LOGITS = 1 << 24  # that are kept of the unchanged model
TOKENS = 128  # of a window


def format_errors(
    rows: F32, formats: Sequence[Format], inputs: Feedback | F32, threads: int, fed: bool = True
) -> list[float]:
    """Return Σ d H d^T of rows rounded to each format.

    fed: round as the model will be; else without feedback, on rows that did not move, and with
    Feedback's variances for H: this takes a tenth of the time, and is in proportion.
    """
    made = inputs if fed or not isinstance(inputs, Feedback) else inputs.variances
    apart = (
        codec.real_values(format, *weighted.rounded(format, rows, None, made, threads)) - rows
        for format in formats
    )
    return [float(error_of(one, made).sum()) for one in apart]


def error_of(apart: F32, inputs: Feedback | F32) -> npt.NDArray[np.float64]:
    """Return d H d^T of each row [M, K] -> [M]; of mean squares, H is their diagonal matrix."""
    if isinstance(inputs, Feedback):
        return inputs.error(apart)
    return np.asarray(np.square(apart) @ inputs, np.float64)


def kinds_of(units: Sequence[Unit]) -> list[list[Unit]]:
    """Group units that differ in the number of their layer only, in the model's order."""
    kinds: dict[tuple[str, int], list[Unit]] = {}
    for unit in units:
        kinds.setdefault((re.sub(r"\.\d+\.", ".N.", unit.name), unit.K), []).append(unit)
    return list(kinds.values())


def measured_of(count: int) -> list[int]:
    """Return which of a kind's layers are measured, the first and the last among them."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, PER_KIND))})


def sampled(M: int) -> npt.NDArray[np.intp]:
    """Return numbers of at most ROWS rows from all over a matrix."""
    return np.unique(np.linspace(0, M - 1, min(M, ROWS)).astype(np.intp))


@dataclass(frozen=True)
class Probe:
    """Measures the KL divergence from the unchanged model.

    windows: tokens, of each of which the last positions count.
    """

    running: Running
    windows: Sequence[Sequence[int]]

    @classmethod
    def of(cls, running: Running, windows: Iterable[Sequence[int]], tokens: int) -> Probe:
        """Take windows of 128 tokens, of `tokens` in all."""
        short = [w[at : at + TOKENS] for w in windows for at in range(0, len(w), TOKENS)]
        whole = [w for w in short if len(w) == TOKENS] or short[:1]
        count = max(1, min(len(whole), tokens // TOKENS))
        return cls(running, [whole[i * len(whole) // count] for i in range(count)])

    @cached_property
    def _wanted(self) -> int:
        vocab = self.running.model.config.vocab_size
        return max(1, min(TOKENS // 2, MOST_LOGITS // (vocab * len(self.windows))))

    @cached_property
    def _unchanged(self) -> list[F32]:
        return list(self._logits({}))

    def sensitivity(self, unit: Unit, inputs: Feedback | F32) -> float:
        """Return g of a unit; 0 where a change has no effect."""
        changed, size = self._changed(unit, inputs)
        return self.kl(changed) / size if size > 0 else 0.0

    def kl(self, changed: Mapping[PackedWeight, PackedWeight]) -> float:
        """Return the mean KL divergence of the model with other weights in place of some."""
        both = zip(self._unchanged, self._logits(changed), strict=True)
        return float(np.mean(np.concatenate([divergence(a, b) for a, b in both])))

    def rows(self, unit: Unit, numbers: npt.NDArray[np.intp] | None = None) -> F32:
        """Return the unit's rows of these numbers, which ascend; None: all of its rows."""
        picked, begin = list[F32](), 0
        for weight, here in self._places(unit):
            for at, chunk in _chunks(weight):
                wanted = np.arange(max(here.start, at), min(here.stop, at + chunk.M))
                if numbers is not None:
                    wanted = wanted[np.isin(wanted - here.start + begin, numbers)]
                if len(wanted):
                    values = ops.dequantize(chunk, threads=self.running.engine.threads)
                    picked.append(values[wanted - at])
            begin += here.stop - here.start
        return picked[0] if len(picked) == 1 else np.concatenate(picked)

    def changed(self, unit: Unit, change: Callable[[F32], F32]) -> dict[PackedWeight, PackedWeight]:
        """Return float weights in place of the model's, whose rows of the unit are changed.

        change: gets some rows [m, K] at a time, all in order; a table of all may be gigabytes.
        """
        made, threads = dict[PackedWeight, PackedWeight](), self.running.engine.threads
        for weight, here in self._places(unit):
            rows = Rows(formats.get("f32"), weight.M, weight.K, None, threads, measures=False)
            for at, chunk in _chunks(weight):
                values = ops.dequantize(chunk, threads=threads)
                part = slice(max(here.start - at, 0), max(here.stop - at, 0))
                if len(values[part]):
                    values[part] = change(values[part])
                rows.add(ops.pack(values, format="f32"), unit.name)
            made[weight] = rows.finish()
        return made

    def _places(self, unit: Unit) -> Iterator[tuple[PackedWeight, slice]]:
        """Yield the weights that have rows of the unit, and which of their rows these are."""
        at = 0
        for weight, name in self.running.names.items():
            if name == unit.item:
                begin, end = max(unit.begin, at), min(unit.begin + unit.M, at + weight.M)
                if begin < end:
                    yield weight, slice(begin - at, end - at)
                at += weight.M

    def _changed(
        self, unit: Unit, inputs: Feedback | F32
    ) -> tuple[dict[PackedWeight, PackedWeight], float]:
        errors = list[npt.NDArray[np.float64]]()

        def change(rows: F32) -> F32:
            rounded = _eight_levels(rows)
            errors.append(error_of(rounded - rows, inputs))
            return rounded

        made = self.changed(unit, change)
        return made, float(np.concatenate(errors).sum())

    def _logits(self, changed: Mapping[PackedWeight, PackedWeight]) -> Iterator[F32]:
        engine, graph = self.running.engine, self.running.model.graph
        program = engine.compiled(replace(graph, ops=[_with(op, changed) for op in graph.ops]))
        config = self.running.model.config
        row = config.label_row if config.labels else "last"
        for window in self.windows:
            wanted = {"first": len(window), "mean": 1, "last": min(self._wanted, len(window))}[row]
            logits = engine.run_variant(program, window, wanted)
            yield logits[:1] if row == "first" else logits


def _chunks(weight: PackedWeight) -> Iterator[tuple[int, PackedWeight]]:
    """Yield some rows of a weight at a time, with the number of the first."""
    at = 0
    for chunk in row_chunks(weight):
        yield at, chunk
        at += chunk.M


def _with(op: Op, changed: Mapping[PackedWeight, PackedWeight]) -> Op:
    op = whole_head(op)  # the screen of an exact head is of the old weight
    if not isinstance(op, WeightOp):
        return op
    new = changed.get(op.weight, op.weight)
    return op if new is op.weight else replace(op, weight=new)


def _eight_levels(rows: F32) -> F32:
    """Round [M, K] to eight levels for each 32 columns, or for each row."""
    M, K = rows.shape
    groups = rows.reshape(M, -1, GROUP if K % GROUP == 0 else K)
    step = np.abs(groups).max(axis=2, keepdims=True) / np.float32(LEVELS / 2 - 0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.nan_to_num(np.floor(groups / step)) + np.float32(0.5)
    most = LEVELS / 2 - 0.5
    return np.asarray(np.clip(level, -most, most) * step, np.float32).reshape(M, K)
