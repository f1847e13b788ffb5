"""`GraphBuilder`: the methods by which a model file adds its layers to a graph."""

from __future__ import annotations

from sterna.graph.methods import (
    ExpertMethods,
    FunctionMethods,
    LinearMethods,
    RowMethods,
    SequenceMethods,
)

__all__ = ["GraphBuilder"]


class GraphBuilder(RowMethods, FunctionMethods, LinearMethods, SequenceMethods, ExpertMethods):
    """Adds operations to `graph`. Methods return what an operation makes, for others to read.

    one_layer: all layers write their keys and values to the same layer of the cache, as those of an
    encoder may that computes its rows whole.
    """
