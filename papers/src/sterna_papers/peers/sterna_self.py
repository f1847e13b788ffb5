"""Sterna itself as a participant, with the same cases, checks and clock as the peers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats, ops
from sterna.bench.random_models import random_model
from sterna.bench.step_work import bytes_per_step, operations_per_token
from sterna.engine import Engine
from sterna.engine import Sequence as EngineSequence
from sterna.formats import PackedWeight
from sterna.runtime import resolve_isa, resolve_threads
from sterna_papers import lookup
from sterna_papers.peers.case import F32, Case, Options, Part, Work, end_to_end
from sterna_papers.peers.end_to_end import EndToEnd
from sterna_papers.peers.products import MIN_SECONDS, Products

__all__ = ["create"]


class SternaModel(EndToEnd):
    """The engine on a random model."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        model = random_model(
            options.shape, format=options.variant, head=options.head, context=self.positions
        )
        self.engine = Engine(
            model,
            threads=options.threads,
            isa=options.isa,
            deterministic=options.deterministic,
            skip_zeros=False,  # random weights do not have a trained model's zeros
        )
        self.sequence = EngineSequence()
        self.last = np.zeros(0, np.float32)

    def keep(self, length: int) -> int:
        return self.engine.kv_cache.rewind(self.sequence, length)

    def feed(self, tokens: Sequence[int]) -> None:
        """Feed tokens in the chunks of the engine's prefill."""
        self.last = self.engine.prefill(self.sequence, tokens)

    def logits(self) -> F32:
        """Return the logits of the last step."""
        last: F32 = self.last.copy()
        return last

    def weight_bytes(self, case: Case) -> float | None:
        return float(self.engine.model.weight_bytes_per_token)

    def work(self, case: Case) -> Work:
        """Count what a token costs at the case's mean context; prompts share the head."""
        prompt, context = case.what.startswith("pp"), case.depth + case.n / 2
        operations = operations_per_token(self.engine, case.n if prompt else 1, context)
        return Work(bytes_per_step(self.engine, context), operations)


class SternaProducts(Products):
    """The kernels on packed weights, float32 activations in and out."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.isa, self.threads = resolve_isa(options.isa), resolve_threads(options.threads)
        format = formats.get(options.variant)
        self.in_order = not ops.is_fast(format, self.isa, options.deterministic)
        self.weights: list[PackedWeight] = []

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Pack the weight into tiles."""
        f = formats.get(self.options.variant)
        scale = 1 / f.value if f.scaled else None  # so that the weight of level 1 is 1
        self.packed = ops.pack(weight, scale, format=f.name, threads=self.threads)
        return self.packed.nbytes

    def copy(self, count: int) -> None:
        """Make packed weights that share nothing but the scale."""
        p = self.packed
        self.weights = []
        for _ in range(count):
            codes = _native.alloc(p.codes.size).reshape(p.codes.shape)
            np.copyto(codes, p.codes)
            self.weights.append(PackedWeight(p.format, p.M, p.K, codes, p.scale))
        self.native = [weight.native() for weight in self.weights]

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as float32; quantisation gives the same numbers back."""
        self.x = x.astype(np.float32)

    def time(self, case: Case) -> tuple[float, bool]:
        """Time the kernels alone, on quantised activations, as for oneDNN; then check one run."""
        self._prepare(case)

        def passes(rounds: int) -> float:
            seconds = _native.time_linear(
                self.native, case.n, self.isa, self.threads, rounds, self.in_order
            )
            return float(np.mean(seconds))

        one_pass = passes(1) * len(self.native)
        seconds = passes(max(1, round(MIN_SECONDS / one_pass)))
        return seconds, self._wrong(self.multiply(0)) == 0

    def multiply(self, copy: int) -> object:
        """Compute one product, including the quantisation of x."""
        return _native.linear(self.native[copy], self.x, self.isa, self.threads, self.in_order)

    def result(self, y: Any) -> F32:
        values: F32 = y
        return values

    def release(self) -> None:
        self.weights, self.native = [], []


def _holds_ternary(f: formats.Format) -> bool:
    """Whether the format has the levels of the products, -1, 0 and 1."""
    return f.codebook is None or f.codebook.has_all((-1, 0, 1))


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant. variant: a weight format; without -1, 0 and 1 it has no products.

    The formats of lookup tables are added to the process if one of them is named.
    """
    if options.variant in {format.name for format in lookup.FORMATS}:
        lookup.register()
    parts: list[Part] = []
    if end_to_end(options):
        parts.append(SternaModel(options))
    if options.n and _holds_ternary(formats.get(options.variant)):
        parts.append(SternaProducts(options))
    try:
        release = version("sterna")
    except PackageNotFoundError:  # run from the source tree
        release = "source"
    return release, options.variant, options.head, parts
