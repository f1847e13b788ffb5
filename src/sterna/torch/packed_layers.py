"""Opens a model of Sterna as layers and tensors with transformers' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from sterna import loading, ops
from sterna.errors import RequestError
from sterna.formats import PackedWeight, Shadow
from sterna.models.config import LINEAR_NORM
from sterna.models.hadamard import FIELD as HADAMARD
from sterna.models.qwen3_5 import TILED_OUT_PROJ
from sterna.torch.module import SternaLinear
from sterna.weights.sources import Linear, WeightSource

__all__ = ["OpenedLayers", "open_layers"]


class OpenedLayers(NamedTuple):
    """layers: linear layers by name; tensors: all other tensors, float32, including tables."""

    layers: dict[str, SternaLinear]
    tensors: dict[str, Tensor]


def open_layers(path: str | Path) -> OpenedLayers:
    """Open a packed folder, or any other model that `sterna.loading.load` opens, by layers.

    Sterna packs q, k and v, and gate and up, as one weight: here each layer has its own rows, with
    the same levels and scales. Raises as `loading.load`, and RequestError for models of experts and
    for rotated inputs, which are no layers of transformers.
    """
    asked: list[_RequestedLayers] = []

    def recorded(source: WeightSource) -> WeightSource:
        asked.append(_RequestedLayers(source))
        return asked[0]

    model = loading.load(path, cached=False, wrap=recorded)
    if model.json.get(HADAMARD) is not None:
        raise RequestError(
            f"{path}: has rotated inputs, which layers of transformers do not rotate"
        )
    if model.json.get(TILED_OUT_PROJ):
        raise RequestError(
            f"{path}: has out_proj with columns in llama.cpp's order, unlike transformers"
        )
    opened = asked[0]
    tensors = {name: torch.from_numpy(np.array(a)) for name, a in opened.vectors.items()}
    for name, table in opened.tables.items():
        tensors[f"{name}.weight"] = torch.from_numpy(ops.dequantize(table))
    layers = {}
    for part, weight in opened.layers.items():
        bias = tensors.pop(f"{part}.bias", None)
        norm = tensors.pop(f"{part}.rms_norm.weight", None)
        layers[part] = SternaLinear(weight, bias, rms_norm=_norm(norm, model.json))
    return OpenedLayers(layers, tensors)


def _norm(weight: Tensor | None, config: Mapping[str, Any]) -> nn.Module | None:
    if weight is None:
        return None
    norm = nn.RMSNorm(len(weight), eps=config[LINEAR_NORM])
    norm.weight = nn.Parameter(weight)
    return norm


class _RequestedLayers:
    """A source of weights that records the requested layers, each separately."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.layers: dict[str, PackedWeight] = {}
        self.vectors: dict[str, Any] = {}
        self.tables: dict[str, PackedWeight] = {}

    @property
    def modules(self) -> Mapping[str, PackedWeight]:
        return self._source.modules

    @property
    def tensors(self) -> Mapping[str, Any]:
        return self._source.tensors

    def has(self, name: str) -> bool:
        """False: transformers' model has no further tensors."""
        return False

    def vector(self, name: str, *shape: int) -> Any:
        self.vectors[name] = self._source.vector(name, *shape)
        return self.vectors[name]

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        self.tables[name] = self._source.table(name, M, K)
        return self.tables[name]

    def shadow(self, table: PackedWeight) -> Shadow | None:
        return None

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        weights = self._source.matrix(name, parts)
        left = list(parts)
        for weight in weights:
            row = 0
            while row < weight.M:
                part = left.pop(0)
                self.layers[part.name] = _rows(weight, row, part.M)
                row += part.M
        return weights

    def experts(self, name: str, *rest: Any) -> NoReturn:
        raise RequestError(f"{name}: is of experts, which are no linear layers of transformers")

    experts_bias = experts


def _rows(weight: PackedWeight, first: int, count: int) -> PackedWeight:
    if (first, count) == (0, weight.M):
        return weight
    levels, scale = ops.unpack(weight)
    rows = slice(first, first + count)
    if not weight.format.scaled:
        return ops.pack(levels[rows], format=weight.format)
    return ops.pack(levels[rows], scale if scale.ndim == 0 else scale[rows], format=weight.format)
