"""What a conversion reads, where it writes, and how."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna.formats import Format
from sterna.formats.feedback import Feedback
from sterna.weights.rounding import RoundingOf, plain

__all__ = ["Job", "Progress", "Squares", "Stage"]

Progress = Callable[[int, int], None]  # (weights done, weights in all)
Stage = Callable[[str, int, int], None]  # (the name of a stage, its work done, its work in all)
#: Mean squares of layers' inputs, float32 [K], or more, by the name under which a model requests
#: the weight.
Squares = Mapping[str, "npt.NDArray[np.float32] | Feedback"]


@dataclass(frozen=True)
class Job:
    """The arguments of `convert` that packed directories and GGUF files have in common.

    src: the model's files; model: what the caller calls it, a path or a name. The others, up to
    `progress`, are those of `convert`.
    """

    src: Path
    dst: Path
    model: str
    head: str | None
    force: bool
    threads: int | None
    i2s: str | None
    squares: Squares
    progress: Progress | None
    #: Formats of single matrices and tables, by the names of what `Plan.read` yields.
    formats: Mapping[str, Format] = field(default_factory=dict)
    #: Whether layers get tables of levels of their own, where their format has a table.
    learns: bool = False
    #: What rounds a matrix, by the name of what `Plan.read` yields.
    rounding: RoundingOf = plain
    #: Vectors in place of the model's, by name.
    vectors: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A short name of the model, for messages and metadata."""
        return Path(os.path.abspath(self.model)).name
