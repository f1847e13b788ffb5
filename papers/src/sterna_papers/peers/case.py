"""What every participant of a comparison shares: options, cases, and how outputs are compared."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sterna.bench.linear import matrices as matrices_named
from sterna.bench.random_models import SHAPES, Hybrid, Shape, shape_named

__all__ = [
    "Case",
    "Missing",
    "Options",
    "Part",
    "distance",
    "end_to_end",
    "last_words",
    "matrices",
    "require",
]

F32 = npt.NDArray[np.float32]


class Missing(Exception):
    """A peer that is not there; the message says what to install."""


@dataclass(frozen=True)
class Case:
    """One thing to measure. n: tokens of the prompt, tokens generated, or columns of a product.

    depth: tokens that are in the KV cache before those that are generated.
    """

    what: str  # "pp512", "tg64", "tg64@4096" or "gemm"
    n: int
    M: int | None = None
    K: int | None = None
    depth: int = 0

    @property
    def shape(self) -> str | None:
        """ "MxK" of a product, None for a whole model."""
        return f"{self.M}x{self.K}" if self.M else None


@dataclass(frozen=True)
class Options:
    """The options that a participant gets at its start, as JSON."""

    shape: str  # a model's name, or MxK for one product alone
    variant: str  # which of its types or modes a peer runs
    threads: int
    pp: tuple[int, ...]
    tg: tuple[int, ...]
    n: tuple[int, ...]
    scratch: str  # a folder for dummy files
    depth: tuple[int, ...] = (0,)  # of each of tg
    head: str = "int8"  # sterna's own
    isa: str | None = None  # sterna's own
    deterministic: bool | None = None  # sterna's own
    llama_bench: str | None = None  # ik_llama.cpp's binary

    @property
    def model(self) -> Shape:
        """The sizes of the model; RequestError for an unknown name."""
        return shape_named(self.shape)


class Part(Protocol):
    """A participant's part that can run some cases."""

    cases: list[Case]

    def check(self, case: Case) -> tuple[bool, str]:
        """Whether the output of exactly this case is right, and how that was found out."""

    def time(self, case: Case) -> tuple[float, bool]:
        """(seconds of one run, whether that very run's output was right)."""

    def weight_bytes(self, case: Case) -> float | None:
        """Bytes of weights that one pass reads."""


def end_to_end(options: Options) -> list[Case]:
    """Prompts and generations of a whole model; a matrix has none."""
    shape = SHAPES.get(options.shape)
    if shape is None or isinstance(shape, Hybrid) or shape.experts:
        return []
    pp = [Case(f"pp{n}", n) for n in options.pp]
    return pp + [
        Case(f"tg{n}@{depth}" if depth else f"tg{n}", n, depth=depth)
        for depth in options.depth
        for n in options.tg
    ]


def matrices(options: Options) -> list[Case]:
    """Products with a layer's matrices (qkv, o, gate and up, down), or with one alone, for each
    token count; RequestError for an unknown shape.
    """
    return [Case("gemm", n, m.M, m.K) for m in matrices_named([options.shape]) for n in options.n]


def distance(a: F32, b: F32) -> float:
    """|a - b| / |b| of two vectors; infinite where either is not finite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def require(module: str, package: str) -> Any:
    """An optional module; Missing names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Missing(
            f"{package} cannot be imported ({e}); pip install './papers[peers]'"
        ) from None


def last_words(stderr: str) -> str:
    """The line that says why a program ended: the last one of an error, else the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "assert" in line.lower() or "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:200]
