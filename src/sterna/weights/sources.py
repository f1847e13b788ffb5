"""Weight sources: the tensors of a checkpoint or packed directory, as models ask for them.

A model file asks for `matrix(name, parts)`: the rows of several linear layers (q, k and v; gate and
up) as one packed weight, or as several if their formats differ. `storages` reads each layer as it
is stored, `packing` puts it into a format. GGUF files have their source in `sterna.gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.checkpoints.directory import Checkpoint
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError, brief, shown
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.formats.base import MAX_INTEGER_K
from sterna.weights import packing, storages
from sterna.weights.rounding import repacked
from sterna.weights.stacked_experts import (
    Stacking,
    experts_in,
    joined,
    mxfp4_experts,
    stored_parts,
    weight_in,
)
from sterna.weights.storages import Floats, Layer, Levels, Linear, Tensors
from sterna.weights.storages.float_levels import ternary_table

__all__ = [
    "CheckpointWeights",
    "Linear",
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
#: The default head for float rows: "exact", or None for the rows alone. Both give the same deciding
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
    """Split parts into runs of neighbours with equal keys, each to become one weight.

    Returns (module, parts) pairs. A single run is called `name`, several `name.0`, `name.1`, …;
    `PackedWeights` finds them by these names.
    """
    runs = [list(run) for _, run in groupby(parts, key)]
    if len(runs) == 1:
        return [(name, runs[0])]
    return [(f"{name}.{i}", run) for i, run in enumerate(runs)]


STACKED = Stacking()


class WeightSource(Protocol):
    """Where a model file gets its weights, always in the form of a Hugging Face checkpoint.

    It keeps by name all that it has handed out.
    """

    @property
    def modules(self) -> Mapping[str, PackedWeight]:
        """Matrices and tables."""

    @property
    def tensors(self) -> Mapping[str, F32]:
        """Vectors."""

    def has(self, name: str) -> bool:
        """Whether there is a matrix of this name; for parts that a model may lack."""

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

        name: of the tensor of all experts, if the checkpoint stacks them as `stacking` says.
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
        """Whether there is a module of this name."""
        return name in self.modules or f"{name}.0" in self.modules

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape."""
        got = self.tensors.get(name)
        if got is None or got.shape != shape:
            raise ModelFormatError(
                file=self.path, field=name, expected=f"F32 shape {list(shape)}",
                got="no such tensor" if got is None else f"shape {list(got.shape)}",
            )  # fmt: skip
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
            experts = experts_in(Experts(weight, count, M), self.format, self.threads, module)
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

        rows_of: the rows that a packed weight has for so many rows of parts.
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
        return self._kept(name, repacked(got, format, self.threads, name, is_layer=False))

    def _layer(self, name: str, M: int, K: int, exact: bool) -> PackedWeight:
        got = self._packed(name, M, K)
        format = None if exact else self.format
        return self._kept(name, repacked(got, format, self.threads, name))

    def _packed(self, name: str, M: int, K: int) -> PackedWeight:
        got = self.modules.get(name)
        if got is None or got.shape != (M, K):
            raise ModelFormatError(
                file=self.path, field=name, expected=f"a packed weight of {M}x{K}",
                got="no such module" if got is None else f"{got.M}x{got.K}",
            )  # fmt: skip
        return got

    def _kept(self, name: str, made: PackedWeight) -> PackedWeight:
        if isinstance(self.modules, dict):  # otherwise they are read on request and not kept
            self.modules[name] = made
        return made

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the int8 shadow of the output head's table if the head is exact, else None."""
        return shadow_of(table, self.head, self.threads)


@dataclass
class CheckpointWeights:
    """The source of a checkpoint in a published layout; weights are packed on request.

    format: of the linear layers; None for the checkpoint's own (ternary -> i2, floats unchanged).
    head: bf16, f16, f32, int8 or another format for the embedding and the head; exact for their own
    with a shadow; None for the default.
    `modules` and `tensors` collect what was made, for the packed directory.
    """

    checkpoint: Checkpoint
    format: str | None
    head: str | None
    threads: int
    ternary_masters: bool  # the architecture's float layers are masters of ternary weights
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read config.json's description of the storage; raises as `storages.quantization` does."""
        self._stored = Tensors(self.checkpoint, self.threads)
        config, file = self.checkpoint.config, self.checkpoint.path / "config.json"
        self._quantization = storages.quantization(config, file)
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the checkpoint has some tensor of a layer of this name."""
        return any(f"{name}.{suffix}" in self.checkpoint.tensors for suffix in storages.SUFFIXES)

    def has_own_head(self, vocab: int, hidden: int) -> bool:
        """Whether there is an output head [vocab, hidden] that is not the embedding again."""
        head, embedding = (self._table_name(n) for n in ("lm_head", "model.embed_tokens"))
        tensors = self.checkpoint.tensors
        if head not in tensors or embedding not in tensors:
            return self.has("lm_head")
        if tensors[head].shape != tensors[embedding].shape:
            return True
        self._read.add(head)
        one, other = (self._stored.read(name, (vocab, hidden)) for name in (head, embedding))
        if one.format == other.format:
            return not np.array_equal(one.bits, other.bits)
        return not np.array_equal(one.values(), other.values())

    def _table_name(self, name: str) -> str:
        """Return the name of a table's tensor; some ternary checkpoints nest lm_head."""
        tensor, nested = f"{name}.weight", f"model.{name}.weight"
        tensors = self.checkpoint.tensors
        return nested if tensor not in tensors and nested in tensors else tensor

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape."""
        self._read.add(name)
        self.tensors[name] = self._stored.floats(name, shape)
        return self.tensors[name]

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Read the embedding or the output head [M, K], in the head's format."""
        tensor = self._table_name(name)
        self._read.add(tensor)
        rows = self._stored.read(tensor, (M, K))
        asked = None if self.head is None else head_format(self.head, rows.format)
        part = rows if asked == rows.format else ternary_table(rows)
        choice = packing.choose(part, asked)
        if choice.keeps:
            self.modules[name] = packing.pack([part], choice, self.threads, tensor)
        else:
            self.modules[name] = packing.pack_floats([rows], choice.format, self.threads, tensor)
        return self.modules[name]

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the int8 shadow of the output head's table if the head is exact, else None."""
        return shadow_of(table, self.head, self.threads)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Pack the rows of `parts` as one weight, or as one for each format among them."""
        read = {part.name: self.rows(part) for part in parts}
        choices = {
            part.name: packing.choose(read[part.name], None if part.exact else self.format)
            for part in parts
        }
        runs = in_runs(name, parts, lambda part: choices[part.name])
        for module, run in runs:
            rows, choice = [read[part.name] for part in run], choices[run[0].name]
            self.modules[module] = packing.pack(rows, choice, self.threads, run[0].name)
        return [self.modules[module] for module, _ in runs]

    def rows(self, part: Linear) -> Levels | Floats:
        """Read one layer from its tensors, checked."""
        return storages.read(self._layer(part))

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Pack the rows of `parts` for all experts, as `matrix` does for one."""
        if f"{name}_blocks" in self.checkpoint.tensors:
            self._read |= {f"{name}_blocks", f"{name}_scales"}
            asked, threads = self.format or "mxfp4", self.threads
            stored = mxfp4_experts(self.checkpoint, name, parts, count, stacking, threads)
            weights = (weight_in(weight, asked, threads, name) for weight in stored)
            return [self._kept(name, Experts.of(count, weights, name))]
        self._read.add(name)
        read = stored_parts(self._stored, self._layer, name, parts, count, stacking)
        choices = {part.name: packing.choose(read(0, part), self.format) for part in parts}

        def packed(expert: int, run: list[Linear]) -> PackedWeight:
            rows = joined([read(expert, part) for part in run])
            choice = packing.choose(rows[0], self.format)
            return packing.pack(rows, choice, self.threads, run[0].of_expert(expert).name)

        return [
            self._kept(module, Experts.of(count, (packed(i, run) for i in range(count)), module))
            for module, run in in_runs(name, parts, lambda part: choices[part.name])
        ]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Read the biases of all experts, from one tensor or from one for each expert."""
        fused = f"{name}_bias"
        if fused in self.checkpoint.tensors:
            self._read.add(fused)
            biases = self._stored.floats(fused, (count, sum(part.M for part in parts)))
            order = stacking.order(parts)
            biases = biases if order is None else biases[:, order]
        else:
            of_all = [part.of_expert(i) for i in range(count) for part in parts]
            each = [self._stored.floats(f"{part.name}.bias", (part.M,)) for part in of_all]
            biases = np.concatenate(each).reshape(count, -1)
        self.tensors[f"{name}.bias"] = np.ascontiguousarray(biases)
        return self.tensors[f"{name}.bias"]

    def _kept(self, module: str, experts: Experts) -> Experts:
        self.modules[module] = experts.weight
        return experts

    def _layer(self, part: Linear) -> Layer:
        quantization = self._quantization
        masters = (quantization.declared or self.ternary_masters) and quantization.converts(
            part.name
        )
        layer = Layer(self._stored, part, masters, quantization)
        self._read.update(f"{part.name}.{suffix}" for suffix in storages.SUFFIXES)
        allowed = {"bias": part.bias, "rms_norm.weight": quantization.norm_eps > 0}
        for extra, known in allowed.items():
            if layer.has(extra) and not known:
                raise UnsupportedModelError(
                    f"{layer.info(extra).file}: {part.name}.{extra}: "
                    f"a linear layer of this architecture has no {extra}"
                )
        return layer

    def refuse_unread(
        self, without_effect: Iterable[str] = (), skipped: Iterable[str] = ()
    ) -> None:
        """Raise UnsupportedModelError for a tensor that the architecture did not ask for.

        The checkpoint's architecture is then not the stated one: one more norm or bias changes
        every result. Modules without an effect, names with a skipped prefix and tensors that can be
        recomputed are exempt.
        """
        unused = {*without_effect}
        for name, info in self.checkpoint.tensors.items():
            known = name in self._read or name.endswith(".rotary_emb.inv_freq")
            known = known or name.rpartition(".")[0] in unused
            known = known or name.startswith(tuple(skipped))
            if name.startswith(("model.", "lm_head.")) and not known:
                raise UnsupportedModelError(
                    f"{info.file}: {name}: must be a tensor of "
                    f"{brief((self.checkpoint.config.get('architectures') or ['?'])[0])}, "
                    "but it has none of this name; config.json names another architecture or other "
                    "sizes"
                )
