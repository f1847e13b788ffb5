"""Linear layers of one input that run as one: which weights, inputs and biases these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sterna.formats import PackedWeight
from sterna.graph import AdaptedLayer, GraphBuilder, Rotation, Value
from sterna.graph.ops import RowwiseOp
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

__all__ = ["LinearLayers", "rotated"]


@dataclass(frozen=True, eq=False)
class LinearLayers:
    """Adds linear layers to `graph`; config.json says which have norms or rotated inputs."""

    graph: GraphBuilder
    config: TransformerConfig
    weights: WeightSource

    def merged(
        self, x: Value, name: str, layers: Sequence[Linear], residual: Value | None, factor: float
    ) -> tuple[Value, list[int]]:
        """Add layers as `ModelBuilder.merged_linear` does.

        Layers with norms or rotations of their own inputs run one by one. Adapters may add to all
        that read x itself; a norm that is fused with the glu before it leaves no x.
        """
        parts, hadamard, source = list(layers), self.config.hadamard, self.weights
        rotations = [hadamard.of_input(p.name, p.K) for p in parts] if hadamard else [None]
        if self.config.linear_norm_eps:
            weights = [weight for p in parts for weight in source.matrix(p.name, [p])]
            inputs = [self._normalised(x, p) for p in parts]
        elif len(set(rotations)) > 1:
            weights = [weight for p in parts for weight in source.matrix(p.name, [p])]
            by_rotation = {r: rotated(self.graph, x, r, name) for r in rotations}
            inputs = [by_rotation[r] for r in rotations]
        else:
            weights = source.matrix(name, parts)
            inputs = [rotated(self.graph, x, rotations[0], name)] * len(weights)
        bias = None
        if parts[0].bias:
            bias = np.concatenate([source.vector(f"{p.name}.bias", p.M) for p in parts])
        out = self.graph.linear(inputs, weights, name, residual, bias, factor)
        columns = _columns(parts, weights, out)
        if not self.config.linear_norm_eps or all(row is not x for row in inputs):
            named = zip(parts, columns, strict=True)
            adapted = [AdaptedLayer(p.name, p.M, p.K, column) for p, column in named]
            self.graph.adapted(x, adapted, factor)
        return out, columns

    def _normalised(self, x: Value, layer: Linear) -> Value:
        name = f"{layer.name}.rms_norm"
        weight = self.weights.vector(f"{name}.weight", layer.K)
        return self.graph.norm(x, weight, self.config.linear_norm_eps, name)


def rotated(graph: GraphBuilder, x: Value, rotation: Rotation | None, name: str) -> Value:
    """Rotate x; x itself if there is no rotation."""
    return x if rotation is None else graph.add(RowwiseOp(name=name, x=x, rotation=rotation))


def _columns(parts: list[Linear], weights: list[PackedWeight], row: Value) -> list[int]:
    """Return the column where each part's results begin; a weight may hold several parts."""
    starts = dict(zip(accumulate((x.M for x in weights), initial=0), row.starts, strict=False))
    columns, at, before = [], 0, 0  # `before`: the weight's rows begin there
    for part in parts:
        before = at if at in starts else before
        columns.append(starts[before] + at - before)
        at += part.M
    return columns
