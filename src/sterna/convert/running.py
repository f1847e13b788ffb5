"""A model that reads a calibration text, as it is and with weights changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import _native, loading, models
from sterna.checkpoints.resolve import resolve
from sterna.convert.plan import assets_of
from sterna.engine import Engine
from sterna.engine.activations import resolve_activations
from sterna.errors import RequestError
from sterna.formats import Experts, PackedWeight
from sterna.graph.ops import ExactHeadOp, LinearOp, Op
from sterna.weights.sources import STACKED, Linear, Stacking, WeightSource
from sterna.weights.wrapped import WrappedWeights

__all__ = ["Running", "rows_of", "spread", "whole_head", "windows_of"]

WINDOW = 512  # tokens read together


@dataclass(frozen=True)
class Running:
    """A loaded model, its engine, and the name under which it requested each weight.

    Layers of integers read their inputs in two planes of int8 where the model may: what is measured
    is then due to the weights.
    """

    model: loading.Model
    engine: Engine
    names: dict[PackedWeight, str]

    @classmethod
    def of(cls, source: str | Path, threads: int | None = None, i2s: str | None = None) -> Running:
        """Load the model as it is stored; raises as `loading.load`."""
        names: dict[PackedWeight, str] = {}

        def wrap(weights: WeightSource) -> WeightSource:
            return _Named(weights, names)

        path = resolve(source, inspect=models.require_architecture)
        model = loading.load(path, cached=False, threads=threads, i2s=i2s, wrap=wrap)
        return cls(model, _engine(model, threads), names)

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits of each token's successor, float32 [tokens, vocab]."""
        return self.engine.run_variant(self._program, tokens, len(tokens))

    @cached_property
    def _program(self) -> _native.Program:
        graph = self.model.graph
        return self.engine.compiled(replace(graph, ops=[whole_head(op) for op in graph.ops]))

    def windows(self, texts: Sequence[str], tokens: int) -> list[Sequence[int]]:
        """Return `tokens` tokens from all over the texts, in windows of 512."""
        tokenizer = assets_of(self.model).tokenizer()
        encoded = (tokenizer.encode(text) for text in spread(texts))
        made, left = list[Sequence[int]](), tokens
        for window in windows_of(encoded, self.engine.context):
            if left:
                made.append(window[:left])
                left -= len(made[-1])
        if not made:
            raise RequestError("calibrate: must have a text with tokens, but got none")
        return made


def _engine(model: loading.Model, threads: int | None) -> Engine:
    activations = None
    if model.graph.rounds_inputs:
        try:
            activations = resolve_activations(model, "int8x2")
        except RequestError:  # it was trained with one plane
            activations = None
    return Engine(
        model, threads=threads, deterministic=True, skip_zeros=False, activations=activations
    )


def whole_head(op: Op) -> Op:
    """Return an operation that computes all logits exactly, for a head that screens rows."""
    if not isinstance(op, ExactHeadOp):
        return op
    return LinearOp(name=op.name, output=op.output, x=op.x, weight=op.weight, selected=op.selected)


def spread(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts from all over the list: every 16th, then every 16th from the next start on."""
    for first in range(16):
        yield from texts[first::16]


def rows_of(model: loading.Model, texts: Sequence[str], length: int, count: int) -> list[list[int]]:
    """Return at most `count` rows of `length` tokens from all over the texts, one after the other.

    A row may have the end of a text and the beginning of the next.
    """
    tokenizer, made, left = assets_of(model).tokenizer(), list[list[int]](), list[int]()
    for text in spread(texts):
        left += tokenizer.encode(text)
        while len(left) >= length and len(made) < count:
            made.append(left[:length])
            del left[:length]
        if len(made) == count:
            break
    return made


def windows_of(texts: Iterator[Sequence[int]], context: int) -> Iterator[Sequence[int]]:
    """Cut texts of tokens into windows."""
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

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Return the source's table, and keep its name."""
        made = super().table(name, M, K)
        self.names[made] = name
        return made
