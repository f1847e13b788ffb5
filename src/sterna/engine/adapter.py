"""`Adapter`: LoRA on a model's packed layers.

y += scale B (A x) in float32, from the layer's own float input; packed weights stay as they are.
Sequences of a step may have different adapters, or none.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sterna import _native
from sterna.checkpoints.lora import MAX_RANK, Lora, LoraLayer, open_lora_folder
from sterna.errors import RequestError, brief
from sterna.gguf.paths import is_gguf
from sterna.graph import AdaptedLayer
from sterna.loading import Model, layer_names

__all__ = ["Adapter", "by_adapter", "cache_salt", "is_of_adapter"]


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that fits a model.

    digest: SHA-256, in hex, of all that it computes with; base: the model that it names, or "";
    rank: rank of its largest layer; n_params: number of its parameters.
    """

    path: Path
    digest: str
    base: str
    rank: int
    n_params: int
    native: _native.Adapter = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: Model) -> Adapter:
        """Open the adapter of a folder, or of a GGUF file, for a model.

        Raises as `open_lora_folder` and `gguf.open_lora`, and RequestError for layers that the
        model lacks, or of other shapes.
        """
        lora = _read(path, model)
        return cls._made(lora.path, lora.digest, lora.base, _fitting(lora, model), model)

    @classmethod
    def mixed(cls, shares: SequenceOf[tuple[Adapter, float]], model: Model) -> Adapter:
        """Return the sum of adapters, each times a scale. At least one; reads their files again.

        RequestError if one has changed since it was opened.
        """
        digest = hashlib.sha256()
        terms: dict[str, list[tuple[LoraLayer, float]]] = {}
        for adapter, scale in shares:
            lora = _read(adapter.path, model)
            if lora.digest != adapter.digest:
                raise RequestError(
                    f"adapter: must be what was loaded, but {adapter.path} has changed; load it "
                    "again"
                )
            digest.update(f"{lora.digest} {scale.hex()}\n".encode())
            for name, layer in _fitting(lora, model).items():
                terms.setdefault(name, []).append((layer, scale))
        layers = {name: _sum(several) for name, several in terms.items()}
        first = shares[0][0]
        return cls._made(first.path, digest.hexdigest(), first.base, layers, model)

    @classmethod
    def _made(
        cls, path: Path, digest: str, base: str, layers: Mapping[str, LoraLayer], model: Model
    ) -> Adapter:
        """Pack the layers, which fit the model."""
        native, count = _native.Adapter(), 0
        for i, place in enumerate(model.graph.places):
            present = [(part, layers[part.name]) for part in place.parts if part.name in layers]
            if not present:
                continue
            down = np.concatenate([layer.down for _, layer in present])
            ups = [
                (layer.up, part.column, float(np.float32(layer.scale * place.factor)))
                for part, layer in present
            ]
            native.add(i, np.ascontiguousarray(down), ups)
            count += down.size + sum(layer.up.size for _, layer in present)
        rank = max(len(layer.down) for layer in layers.values())
        return cls(path, digest, base, rank, count, native)

    def warn_of_base(self, name: str) -> None:
        """Warn if the adapter names another base model."""
        own, other = (os.path.basename(n.rstrip("/").partition("@")[0]) for n in (name, self.base))
        if other and own and own.lower() != other.lower():
            warnings.warn(
                f"{self.path}: was trained on {brief(self.base)}, but the model is {brief(name)}; "
                "their layers have the same shapes, and if their weights differ answers mean "
                "nothing",
                RuntimeWarning,
                stacklevel=4,
            )


def _read(path: str | os.PathLike[str], model: Model) -> Lora:
    if not isinstance(path, (str, os.PathLike)) or not is_gguf(path):
        return open_lora_folder(path)
    from sterna.gguf.lora import BaseLayers, open_lora  # most adapters are folders

    config = model.config
    names = [part.name for place in model.graph.places for part in place.parts]
    return open_lora(path, BaseLayers(names, config.head_dim, config.n_kv_heads))


def _fitting(lora: Lora, model: Model) -> dict[str, LoraLayer]:
    """Return an adapter's layers by the model's names. RequestError for one that does not fit."""
    known = {part.name: part for place in model.graph.places for part in place.parts}
    layers = layer_names(model, lora.layers)
    for name, (stored, layer) in layers.items():
        _check(lora, model, stored, layer, known.get(name))
    return {name: layer for name, (_, layer) in layers.items()}


def _sum(terms: SequenceOf[tuple[LoraLayer, float]]) -> LoraLayer:
    """Return a layer that adds what several add, each times a scale."""
    if len(terms) == 1:
        (layer, scale) = terms[0]
        return layer._replace(scale=layer.scale * scale)
    down = np.concatenate([layer.down for layer, _ in terms])
    if len(down) > MAX_RANK:
        raise RequestError(f"adapter: ranks must add up to at most {MAX_RANK}, but got {len(down)}")
    ups = [layer.up * np.float32(layer.scale * scale) for layer, scale in terms]
    return LoraLayer(down, np.concatenate(ups, axis=1), 1.0)


def _check(
    lora: Lora, model: Model, stored: str, layer: LoraLayer, part: AdaptedLayer | None
) -> None:
    tensors = lora.tensors[stored]
    if part is None:
        raise RequestError(
            f"{lora.file}: {tensors[0]}: must be a linear layer of {model.config.architecture} "
            "that may have an adapter, but this model has none of this name; use the model that it "
            "was trained on"
        )
    for tensor, got, expected in (
        (tensors[0], layer.down.shape, (len(layer.down), part.K)),
        (tensors[1], layer.up.shape, (part.M, layer.up.shape[1])),
    ):
        if got != expected:
            raise RequestError(
                f"{lora.file}: {tensor}: must have the shape {list(expected)} for a layer of "
                f"{part.M}x{part.K}, but got {list(got)}; use the model that it was trained on"
            )


def by_adapter(
    adapters: SequenceOf[Adapter | None],
) -> tuple[list[int], list[tuple[int, int, _native.Adapter]]]:
    """Return an order in which sequences of one adapter are adjacent, those without first; and
    (first, count, adapter) of each run in that order."""
    places = {None: 0} | {id(a): i + 1 for i, a in enumerate(a for a in adapters if a is not None)}
    keys = [places[None if a is None else id(a)] for a in adapters]
    order = sorted(range(len(adapters)), key=keys.__getitem__)
    runs = list[tuple[int, int, _native.Adapter]]()
    for at, i in enumerate(order):
        adapter = adapters[i]
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


def is_of_adapter(salt: str) -> bool:
    """Whether a salt of `cache_salt` is of an adapter."""
    return salt.startswith("adapter:")
