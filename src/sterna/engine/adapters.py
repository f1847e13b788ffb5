"""`Adapter`: LoRA on a model's packed layers.

y += scale B (A x) in float32, from the layer's own float input; packed weights stay as they are.
Sequences of a step may have different adapters, or none.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sterna import _native
from sterna.checkpoints.lora import PREFIX, LoraFolder, LoraLayer
from sterna.errors import RequestError, brief
from sterna.graph import AdaptedLayer
from sterna.loading import Model, layer_names

__all__ = ["Adapter", "by_adapter", "cache_salt"]


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that fits a model.

    digest: SHA-256, in hex, of all that it computes with; base: the model that it names, or "";
    rank: of its largest layer; n_params: how many numbers it has.
    """

    path: Path
    digest: str
    base: str
    rank: int
    n_params: int
    native: _native.Adapter = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: Model) -> Adapter:
        """Open the adapter of a folder for a model.

        Raises as `LoraFolder.open`, and RequestError for layers that the model lacks, or of other
        shapes.
        """
        folder = LoraFolder.open(path)
        layers = layer_names(model, folder.layers)
        places = model.graph.places
        known = {part.name: part for place in places for part in place.parts}
        for name, (stored, layer) in layers.items():
            _check(folder, model, stored, layer, known.get(name))
        native, count = _native.Adapter(), 0
        for i, place in enumerate(places):
            present = [(part, layers[part.name][1]) for part in place.parts if part.name in layers]
            if not present:
                continue
            down = np.concatenate([layer.down for _, layer in present])
            ups = [
                (layer.up, part.column, float(np.float32(layer.scale * place.factor)))
                for part, layer in present
            ]
            native.add(i, np.ascontiguousarray(down), ups)
            count += down.size + sum(layer.up.size for _, layer in present)
        return cls(folder.path, folder.digest, folder.base, folder.rank, count, native)

    def warn_of_base(self, name: str) -> None:
        """Warn if the adapter names another base model."""
        own, other = (os.path.basename(n.rstrip("/").partition("@")[0]) for n in (name, self.base))
        if other and own and own.lower() != other.lower():
            warnings.warn(
                f"{self.path}: was trained on {brief(self.base)}, but the model is {brief(name)}; "
                "their layers have the same shapes, and if their weights differ answers mean "
                "nothing",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip


def _check(
    folder: LoraFolder, model: Model, stored: str, layer: LoraLayer, part: AdaptedLayer | None
) -> None:
    tensor = f"{folder.file}: {PREFIX}{stored}"
    if part is None:
        raise RequestError(
            f"{tensor}: must be a linear layer of {model.config.architecture} that may have an "
            "adapter, but this model has none of this name; use the model that it was trained on"
        )
    for half, got, expected in (
        ("A", layer.down.shape, (len(layer.down), part.K)),
        ("B", layer.up.shape, (part.M, layer.up.shape[1])),
    ):
        if got != expected:
            raise RequestError(
                f"{tensor}.lora_{half}.weight: must have the shape {list(expected)} for a layer of "
                f"{part.M}x{part.K}, but got {list(got)}; use the model that it was trained on"
            )


def by_adapter(
    given: SequenceOf[Adapter | None],
) -> tuple[list[int], list[tuple[int, int, _native.Adapter]]]:
    """Return an order in which sequences of one adapter are adjacent, those without first; and
    (first, count, adapter) of each run in that order."""
    places = {None: 0} | {id(a): i + 1 for i, a in enumerate(a for a in given if a is not None)}
    keys = [places[None if a is None else id(a)] for a in given]
    order = sorted(range(len(given)), key=keys.__getitem__)
    runs = list[tuple[int, int, _native.Adapter]]()
    for at, i in enumerate(order):
        adapter = given[i]
        if adapter is None:
            continue
        if runs and runs[-1][2] is adapter.native:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, adapter.native)
        else:
            runs.append((at, 1, adapter.native))
    return order, runs


def cache_salt(salt: str, adapter: Adapter | None) -> str:
    """Return the salt of cached prefixes: those of an adapter are not shared with others."""
    if adapter is not None:
        return f"adapter:{adapter.digest}:{salt}"
    return f"::{salt}" if salt.startswith(("adapter:", "::")) else salt
