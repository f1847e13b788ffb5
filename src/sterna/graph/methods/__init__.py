"""The methods by which a model file adds its layers, by what they do.

base        the graph that they add to
rows        make, copy and order columns of rows
functions   norms, activations, gates and rotations of a row
linear      linear layers, adapters, the head
sequence    attention, convolutions and recurrences
experts     routes of tokens to experts
"""

from sterna.graph.methods.experts import ExpertMethods
from sterna.graph.methods.functions import FunctionMethods
from sterna.graph.methods.linear import LinearMethods
from sterna.graph.methods.rows import RowMethods
from sterna.graph.methods.sequence import SequenceMethods

__all__ = ["ExpertMethods", "FunctionMethods", "LinearMethods", "RowMethods", "SequenceMethods"]
