"""`Model`: a graph and the weights that it runs with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checkpoints import cache
from sterna.checkpoints.assets import Assets
from sterna.checkpoints.packed_writer import write_packed
from sterna.errors import RequestError
from sterna.formats import PackedWeight
from sterna.graph import Graph, identity
from sterna.models.config import TransformerConfig
from sterna.weights.sources import WeightSource

if TYPE_CHECKING:
    from sterna.models.vision.tower import Tower

__all__ = ["DenseLayer", "Model", "save"]


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A linear layer after the pooling of an embedding model: act(x W^T (+ bias)).

    activation: as in `models.pooling.Dense`.
    """

    weight: PackedWeight
    bias: npt.NDArray[np.float32] | None
    activation: str


@dataclass(eq=False)
class Model:
    """A model traced into a graph, for an engine.

    A model made in memory has neither a path nor assets.

    Attributes:
        path: Folder or file that it was read from.
        json: config.json as it was read, or GGUF metadata translated to it.
        config: The fields that matter, checked.
        format: Format of most bytes of the linear layers, without the head.
        head: Format of the output head, or "exact".
        kv_dtype: Type of keys and values, unless the user sets another.
        mtp: Its MTP layer, which shares the weights.
        tower: The vision encoder with its projector; None for a text-only model.
        store: The cache entry that is being written.
        cache_key: The key under which `keep` writes it.
        mapped: Whether weights lie in a mapped file.
        weight_cache: The cache of weights that stay on disk; None: all are in memory.
        name: The model's name in messages.
        dense: The linear layers after the pooling.
    """

    path: Path | None
    json: dict[str, Any]
    config: TransformerConfig
    graph: Graph
    weights: WeightSource = field(repr=False)
    format: str
    head: str
    kv_dtype: str = "i16"
    assets: Assets | None = None
    mtp: Model | None = field(default=None, repr=False)
    tower: Tower | None = field(default=None, repr=False)
    store: cache.BackgroundWrite | None = field(default=None, repr=False)
    cache_key: str | None = field(default=None, repr=False)
    mapped: bool = False
    weight_cache: _native.WeightCache | None = field(default=None, repr=False)
    name: str = "model"
    dense: tuple[DenseLayer, ...] = ()

    def keep(self) -> None:
        """Write the packed form to the cache in the background, unless `load` found it there.

        Call it once all of the model is open: if the tokenizer is refused, the disk stays clean.
        """
        if self.cache_key is not None and self.store is None:
            self.store = cache.store_behind(self.cache_key, lambda dst: save(self, dst), self.path)

    @property
    def n_params(self) -> int:
        """Weights of all matrices, all experts included; a tied embedding counts once."""
        return sum(op.n_weights for op in self.graph.weight_ops)

    @property
    def n_active_params(self) -> int:
        """Weights that one token uses, including only its own experts."""
        return round(sum(op.n_weights * op.active for op in self.graph.weight_ops))

    @property
    def bits(self) -> float:
        """Bits of a weight, on average over all matrices, with their scales."""
        return 8 * sum(op.weight.nbytes for op in self.graph.weight_ops) / max(1, self.n_params)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the operations and of every weight as they run.

        Equal on all machines and for all kinds of files. Takes about a second for 1.5 GB.
        """
        return identity.digest(self.graph)

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights and scales that one decode step of one token reads.

        For an exact head, the screen's bytes count; the number of rows rescored varies by step.
        """
        return round(sum(op.streamed.nbytes * op.active for op in self.graph.linears))


def save(model: Model, dst: str | Path) -> None:
    """Write a model as a packed directory; `dst` must be absent or empty.

    Raises RequestError for a model that has no folder (made in memory) or where disk is short.
    """
    if model.assets is None:
        raise RequestError("save: a model made in memory has no tokenizer to save it with")
    weights = model.weights
    with model.assets.as_folder() as source:
        write_packed(dst, model.json, weights.modules, weights.tensors, source, model.format)
