"""Models as graphs of operations, and their compilation to native programs.

A model's `build` calls the methods of a `GraphBuilder` once; each returns a `Value`, a row of
activations per token. `Graph.compile` then decides which values are quantised (those an integer
layer reads) and which share a buffer (those never alive together), and adds each operation to a
native `Program`.
"""

from sterna.graph.activations import ACTIVATIONS
from sterna.graph.builder import GraphBuilder
from sterna.graph.compilation import Crossings
from sterna.graph.graph import Graph
from sterna.graph.heads import (
    Attention,
    Heads,
    LatentHeads,
    Piece,
    RecurrentHeads,
    Rotary,
    Rotation,
    Scoring,
)
from sterna.graph.ops import AdaptedLayer, Route, Value
from sterna.graph.parts import Part, Parts

__all__ = [
    "ACTIVATIONS",
    "AdaptedLayer",
    "Attention",
    "Crossings",
    "Graph",
    "GraphBuilder",
    "Heads",
    "LatentHeads",
    "Part",
    "Parts",
    "Piece",
    "RecurrentHeads",
    "Rotary",
    "Rotation",
    "Route",
    "Scoring",
    "Value",
]
