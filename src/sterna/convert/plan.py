"""Lists the weights of a model without reading them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna import formats, loading
from sterna.checkpoints.assets import Assets
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.models import module_of
from sterna.weights.checkpoint_weights import CheckpointWeights
from sterna.weights.sources import STACKED, Linear, PackedWeights, Stacking, WeightSource

__all__ = ["Item", "Plan", "assets_of", "check_assets", "plan"]

F32 = npt.NDArray[np.float32]


class Item(NamedTuple):
    """One weight that an architecture requests: a small array, a matrix of parts, or a table.

    shape: an array's, which counts as one column. experts: the number of experts with a matrix of
    these parts; `stacking` says how a tensor of all experts holds them.
    """

    kind: str  # "vector", "bias" (of experts), "matrix", "experts" or "table"
    name: str
    parts: tuple[Linear, ...]
    shape: tuple[int, ...] = ()
    experts: int = 1
    stacking: Stacking = STACKED

    @property
    def M(self) -> int:
        """Rows, of all experts, or the size of a vector."""
        return self.experts * sum(part.M for part in self.parts)

    @property
    def exact(self) -> bool:
        """Whether it keeps its own format even if another is requested."""
        return any(part.exact for part in self.parts)

    @property
    def K(self) -> int:
        """Columns; 1 of a vector."""
        return self.parts[0].K


@dataclass
class Plan:
    """A source of weights that notes requests, and hands out weights without codes."""

    source: WeightSource
    items: dict[str, Item] = field(default_factory=dict)
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether the model's own source has a matrix of this name."""
        return self.source.has(name)

    def vector(self, name: str, *shape: int) -> F32:
        self.items[name] = Item("vector", name, (Linear(name, math.prod(shape), 1),), shape)
        return np.zeros(shape, np.float32)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return one weight of this shape, without codes."""
        self.items[name] = Item("matrix", name, tuple(parts))
        return [_hollow(sum(part.M for part in parts), parts[0].K)]

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Return weights of this shape, without codes."""
        self.items[name] = Item("experts", name, tuple(parts), (), count, stacking)
        M = sum(part.M for part in parts)
        return [Experts(_hollow(count * M, parts[0].K), count, M)]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        columns = tuple(replace(part, K=1) for part in parts)
        self.items[f"{name}.bias"] = Item("bias", f"{name}.bias", columns, (), count, stacking)
        return np.zeros((count, sum(part.M for part in parts)), np.float32)

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Return a weight of this shape, without codes."""
        self.items[name] = Item("table", name, (Linear(name, M, K),))
        return _hollow(M, K)

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """None: a shadow is made at loading."""
        return None

    @property
    def n_weights(self) -> int:
        """Weights of all items."""
        return sum(item.M * item.K for item in self.items.values())

    def read(self, item: Item) -> Iterator[tuple[str, PackedWeight | Experts | F32]]:
        """Yield the model's pieces of an item: (name, rows).

        Pieces of a matrix are its parts, or joined parts if the model has them so. Pieces of
        experts are runs of parts of one format, for all experts. None is kept.
        """
        if item.kind == "vector":
            yield item.name, self.source.vector(item.name, *item.shape)
        elif item.kind == "table":
            yield item.name, self.source.table(item.name, item.M, item.K)
        elif item.kind == "bias":
            name = item.name.removesuffix(".bias")
            of_all = self.source.experts_bias(name, [*item.parts], item.experts, item.stacking)
            yield item.name, of_all
        elif item.kind == "experts":
            runs = self.source.experts(item.name, [*item.parts], item.experts, item.stacking)
            for i, run in enumerate(runs):
                yield (item.name if len(runs) == 1 else f"{item.name}.{i}"), run
        elif isinstance(self.source, PackedWeights):
            yield from (
                (item.name, weight) for weight in self.source.matrix(item.name, [*item.parts])
            )
        else:
            for part in item.parts:
                self._forget()
                yield from ((part.name, weight) for weight in self.source.matrix(part.name, [part]))
        self._forget()

    def check_all_read(self, model: loading.Model) -> None:
        """Raise UnsupportedModelError for a tensor of the planned model that no item requested."""
        if isinstance(self.source, CheckpointWeights):
            module = module_of(model.json, model.path or Path("config.json"))
            loading.refuse_unread(self.source, module, model.config)

    def stored_format(self, item: Item) -> str:
        """Return the model's own format of an item; reads the first piece."""
        for _, piece in self.read(item):
            return piece.format.name if isinstance(piece, PackedWeight) else "f32"
        raise AssertionError("an item has pieces")

    def _forget(self) -> None:
        for made in (self.source.modules, self.source.tensors):
            if isinstance(made, dict):
                made.clear()


def plan(
    path: str | Path, threads: int | None = None, i2s: str | None = None
) -> tuple[loading.Model, Plan]:
    """Open a model as `loading.load` does, without reading weights, and list these."""
    made: list[Plan] = []

    def wrap(source: WeightSource) -> WeightSource:
        made.append(Plan(source))
        return made[-1]

    return loading.load(path, threads=threads, i2s=i2s, wrap=wrap), made[-1]


def check_assets(model: loading.Model, required: bool = True) -> None:
    """Read a model's tokenizer and template as a start does; raises ModelFormatError.

    required: whether there must be a tokenizer.
    """
    assets = assets_of(model)
    if required or assets.has_tokenizer:
        assets.tokenizer().check(model.config.vocab_size)
    assets.template()


def assets_of(model: loading.Model) -> Assets:
    """Return the assets of a model of `plan`, which has them since it came from a path."""
    assert model.assets is not None
    return model.assets


def _hollow(M: int, K: int) -> PackedWeight:
    nothing = np.empty((0, 0), np.uint8)
    return PackedWeight(formats.get("f32"), M, K, nothing, np.ones((), np.float32))
