"""Shared by all participants of a comparison: options, cases, and the comparison of outputs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sterna.bench.linear import matrices as matrices_named
from sterna.bench.shapes import SHAPES, Hybrid, Shape, shape_named

__all__ = [
    "WITH_EXPERTS",
    "Case",
    "Missing",
    "Options",
    "Part",
    "Work",
    "distance",
    "end_to_end",
    "last_words",
    "matrices",
    "require",
]

F32 = npt.NDArray[np.float32]

#: Classes with experts whose files the llama.cpps are given (`dummy_models.PLANS`).
WITH_EXPERTS = {"Lfm2MoeForCausalLM", "Qwen3MoeForCausalLM"}


class Missing(Exception):
    """A peer is not installed; the message says what to install."""


@dataclass(frozen=True)
class Case:
    """One measurement. n: tokens of the prompt, tokens to generate, or columns of a product.

    depth: tokens that are in the KV cache before generation.
    """

    what: str  # "pp512", "tg64", "tg64@4096" or "gemm"
    n: int
    M: int | None = None
    K: int | None = None
    depth: int = 0

    @property
    def shape(self) -> str | None:
        """The shape "MxK" of a product; None for a whole model."""
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
    depth: tuple[int, ...] = (0,)  # each number is a case for each of tg
    head: str = "int8"  # only for Sterna
    isa: str | None = None  # only for Sterna
    deterministic: bool | None = None  # only for Sterna
    llama_bench: str | None = None  # ik_llama.cpp's binary

    @property
    def model(self) -> Shape:
        """The model's shape; RequestError for an unknown name."""
        return shape_named(self.shape)


class Work(NamedTuple):
    """The cost of a token of a case: bytes read from memory, and operations."""

    bytes: float
    operations: float


class Part(Protocol):
    """A participant's part that can run some cases."""

    cases: list[Case]

    def check(self, case: Case) -> tuple[bool, str]:
        """Return whether the output of exactly this case is right, and how that was checked."""

    def time(self, case: Case) -> tuple[float, bool]:
        """Return (seconds of one run, whether that very run's output was right)."""

    def weight_bytes(self, case: Case) -> float | None:
        """Return the bytes of weights that one pass reads; None if unknown."""


def end_to_end(options: Options) -> list[Case]:
    """List the prompts and generations of a whole model; a matrix has none.

    Of shapes with experts or recurrent layers, only those of WITH_EXPERTS have some.
    """
    shape = SHAPES.get(options.shape)
    special = shape is None or isinstance(shape, Hybrid) or shape.experts
    if shape is None or (special and shape.architecture not in WITH_EXPERTS):
        return []
    pp = [Case(f"pp{n}", n) for n in options.pp]
    return pp + [
        Case(f"tg{n}@{depth}" if depth else f"tg{n}", n, depth=depth)
        for depth in options.depth
        for n in options.tg
    ]


def matrices(options: Options) -> list[Case]:
    """List the products for each token count; RequestError for an unknown shape.

    A model has those of a layer's matrices: qkv, o, gate and up, down.
    """
    return [Case("gemm", n, m.M, m.K) for m in matrices_named([options.shape]) for n in options.n]


def distance(a: F32, b: F32) -> float:
    """Return |a - b| / |b| of two vectors; infinite if either is not finite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def require(module: str, package: str) -> Any:
    """Import an optional module; Missing names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Missing(
            f"{package} cannot be imported ({e}); pip install './papers[peers]'"
        ) from None


def last_words(stderr: str) -> str:
    """Return the line that says why a program ended: the last with an error, or else the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "assert" in line.lower() or "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:200]
