"""From a path to a model that is ready to run, and from a model to a packed directory.

loader    opens a checkpoint, a packed directory or a GGUF file; `readers` has one for each
tracing   configuration and weights -> a traced model
model     `Model`: the model of an engine; `save` writes it
"""

from __future__ import annotations

from sterna.loading.loader import load, load_assets
from sterna.loading.model import DenseLayer, Model, save
from sterna.loading.tracing import from_weights, layer_names, refuse_unread

__all__ = [
    "DenseLayer",
    "Model",
    "from_weights",
    "layer_names",
    "load",
    "load_assets",
    "refuse_unread",
    "save",
]
