"""Weight sources: the tensors of a checkpoint or packed directory, as models ask for them.

A model file asks for `matrix(name, parts)`: the rows of several linear layers (q, k and v; gate and
up) as one packed weight, or as several if their formats differ. `storages` reads each layer as it
is stored, `packing` puts it into a format. GGUF files have their source in `sterna.gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.formats.base import MAX_INTEGER_K
from sterna.weights.parts import STACKED, Linear, OfHeads, Stacking

__all__ = [
    "STACKED",
    "Linear",
    "OfHeads",
    "PackedWeights",
    "Stacking",
    "WeightSource",
    "default_head",
    "head_format",
    "in_runs",
    "shadow_of",
]

F32 = npt.NDArray[np.float32]
#: Head -> the format of its rows; an exact head keeps the checkpoint's. The name of any weight
#: format, such as q8_0, is a head, too. "int8" means rows of the format "i8"; both are accepted,
#: and a model's `head` says "int8".
HEADS: dict[str, str | None] = {
    "bf16": "bf16",
    "f16": "f16",
    "f32": "f32",
    "int8": "i8",
    "exact": None,
}
#: The default head for float rows: "exact", or None for only the rows. Both give the same deciding
#: logits; "exact" reads fewer bytes and takes more memory.
DEFAULT_FLOAT_HEAD: str | None = "exact"


def default_head(stored: str) -> str:
    """Return the default head for rows stored in a format ("bf16", "i8" …)."""
    if stored == "i8":
        return "int8"
    return stored if formats.get(stored).scaled else DEFAULT_FLOAT_HEAD or stored


def head_format(head: str, stored: str) -> str:
    """Return the format of a head's rows (stored: the checkpoint's); RequestError if unknown."""
    if isinstance(head, str) and head in HEADS:
        return HEADS[head] or stored
    if not formats.known(head):
        raise RequestError(
            f"head: must be one of {', '.join(HEADS)} or a weight format such as q8_0, "
            f"but got {shown(head)}"
        )
    return head


def shadow_of(table: PackedWeight, head: str | None, threads: int) -> Shadow | None:
    """Make the shadow of an exact head; None for another head."""
    fits = table.K <= MAX_INTEGER_K  # else the default gives way, while asking for it is an error
    if (head or (default_head(table.format.name) if fits else "")) != "exact":
        return None
    return Shadow.of(table, threads)


def in_runs(
    name: str, parts: list[Linear], key: Callable[[Linear], object]
) -> list[tuple[str, list[Linear]]]:
    """Split parts into runs with equal keys; each run becomes one weight.

    Returns (module, parts) pairs. A single run is called `name`, several `name.0`, `name.1`, …;
    `PackedWeights` finds them by these names.
    """
    runs = [list(run) for _, run in groupby(parts, key)]
    if len(runs) == 1:
        return [(name, runs[0])]
    return [(f"{name}.{i}", run) for i, run in enumerate(runs)]


class WeightSource(Protocol):
    """Where a model file gets its weights, always in the form of a Hugging Face checkpoint.

    It keeps by name all that it has handed out.
    """

    @property
    def modules(self) -> Mapping[str, PackedWeight]:
        """The matrices and tables handed out so far, by name."""

    @property
    def tensors(self) -> Mapping[str, F32]:
        """The vectors handed out so far, float32, by name."""

    def has(self, name: str) -> bool:
        """Whether there is a matrix or a norm of this name; for parts that a model may lack."""

    def vector(self, name: str, *shape: int) -> F32:
        """Return a norm's weight, a bias or a small array: finite float32 of this shape."""

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return the rows of `parts` in sequence: one weight [sum M, K], or several.

        Each of several holds a whole number of parts. Neighbours of one format should be one
        weight, which is faster. UnsupportedModelError for a stored bias that no part has.
        """

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Return the rows of `parts` for each of `count` experts, as `matrix` does for one.

        name: the tensor's that has all experts, if the checkpoint stacks them as `stacking` says.
        """

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Return the experts' biases, float32 [count, sum M]."""

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Return the embedding or the output head [vocab, hidden]."""

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the int8 shadow of the output head's table if the head is exact, else None."""


@dataclass
class PackedWeights:
    """The source of a packed directory; only an exact head's shadow is still to be made.

    format, head: another format, as in `CheckpointWeights`, that `repacked` can make; None: as
    packed.
    """

    modules: Mapping[str, PackedWeight]
    tensors: Mapping[str, F32]
    path: str
    head: str | None
    threads: int
    format: str | None = None

    def has(self, name: str) -> bool:
        """Whether there is a module of this name, or a norm."""
        module = name in self.modules or f"{name}.0" in self.modules
        return module or f"{name}.weight" in self.tensors

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape."""
        got = self.tensors.get(name)
        if got is None or got.shape != shape:
            raise ModelFormatError(
                self.path,
                name,
                f"F32 shape {list(shape)}",
                "no such tensor" if got is None else f"shape {list(got.shape)}",
            )
        return np.asarray(got, np.float32)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Read the packed weight of this name, or several (`in_runs`), each of whole parts."""
        exact = any(part.exact for part in parts)
        modules = self._modules(name, parts, lambda rows, _: rows)
        return [self._layer(module, M, parts[0].K, exact) for module, M in modules]

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Read the packed weights of this name, as in `matrix`."""
        made = []
        for module, M in self._modules(
            name, parts, lambda rows, stored: Experts.rows_of(stored.format.tile_rows, count, rows)
        ):
            stored = self.modules.get(module)
            rows = Experts.rows_of(stored.format.tile_rows, count, M) if stored else count * M
            weight = self._packed(module, rows, parts[0].K)
            experts = Experts(weight, count, M)
            if self.format is not None:
                from sterna.weights.stacked_experts import experts_in

                experts = experts_in(experts, self.format, self.threads, module)
            self._kept(module, experts.weight)
            made.append(experts)
        return made

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Read the stored biases of all experts."""
        return self.vector(f"{name}.bias", count, sum(part.M for part in parts))

    def _modules(
        self, name: str, parts: list[Linear], rows_of: Callable[[int, PackedWeight], int]
    ) -> list[tuple[str, int]]:
        """Return the modules that hold the parts, each with the number of its rows.

        rows_of: the rows of a packed weight for this many rows of parts.
        """
        if f"{name}.0" not in self.modules:
            return [(name, sum(part.M for part in parts))]
        modules: list[tuple[str, int]] = []
        parts_left = list(parts)
        while parts_left:
            module = f"{name}.{len(modules)}"
            stored = self.modules.get(module)
            rows = parts_left.pop(0).M
            while parts_left and stored is not None and rows_of(rows, stored) < stored.M:
                rows += parts_left.pop(0).M
            modules.append((module, rows))
        return modules

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Read the packed embedding or head."""
        got = self._packed(name, M, K)
        format = None if self.head is None else head_format(self.head, got.format.name)
        return self._kept(name, self._in(format, got, name, is_layer=False))

    def _layer(self, name: str, M: int, K: int, exact: bool) -> PackedWeight:
        got = self._packed(name, M, K)
        format = None if exact else self.format
        return self._kept(name, self._in(format, got, name))

    def _in(
        self, format: str | None, got: PackedWeight, name: str, is_layer: bool = True
    ) -> PackedWeight:
        """Return the weight in a format, None for its own, by `rounding.repacked`."""
        if format is None:
            return got
        from sterna.weights.rounding import repacked

        return repacked(got, format, self.threads, name, is_layer)

    def _packed(self, name: str, M: int, K: int) -> PackedWeight:
        got = self.modules.get(name)
        if got is None or got.shape != (M, K):
            raise ModelFormatError(
                self.path,
                name,
                f"a packed weight of {M}x{K}",
                "no such module" if got is None else f"{got.M}x{got.K}",
            )
        return got

    def _kept(self, name: str, made: PackedWeight) -> PackedWeight:
        if isinstance(self.modules, dict):  # otherwise they are read on request and not kept
            self.modules[name] = made
        return made

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the int8 shadow of the output head's table if the head is exact, else None."""
        return shadow_of(table, self.head, self.threads)
