"""The words a model file writes its layers in, and their translation to a native Program.

A model's `build` calls the methods of a `Graph` once; each returns a `Value`, a row of activations
per token. `compile` then decides which values are quantised (those an integer layer reads), which
share a buffer (those never alive together), and emits the flat list of operations that the native
runner plays.
"""

from sterna.graph.activations import ACTIVATIONS
from sterna.graph.graph import Graph
from sterna.graph.heads import Attention, Heads, RecurrentHeads, Rotary, Rotation
from sterna.graph.operations import Adapted, Part, Route, Value

__all__ = [
    "ACTIVATIONS",
    "Adapted",
    "Attention",
    "Graph",
    "Heads",
    "Part",
    "RecurrentHeads",
    "Rotary",
    "Rotation",
    "Route",
    "Value",
]
