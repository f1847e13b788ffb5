"""`Tower`: what makes vectors of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.graph import Graph, GraphBuilder, Value
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields

__all__ = ["Grid", "Rows", "Tower", "graph_of", "vision_config"]

F32 = npt.NDArray[np.float32]
#: Frames, rows and columns of patches; None where all images have the same.
Grid = tuple[int, int, int] | None
#: Arranges rows of a tile, of which the grid tells the size.
Rows = Callable[[F32, Grid], F32]


@dataclass(frozen=True, eq=False)
class Tower:
    """The encoder of a model's images, and the projector to the text's width.

    encoder: from rows of patches to their features, float32 [patches, …] each, where all patches
    see each other; projector: from rows of tokens to `width` columns. The first columns stand in
    the place of an embedding, `GraphBuilder.features` adds the others.
    rows: what the encoder reads of a tile's or an image's pixels; merged: rows of tokens of its
    features. image_token: the id at whose positions rows stand.
    together: tokens that follow each other see each other, behind and ahead.
    """

    encoder: Graph
    projector: Graph
    width: int
    image_token: int
    rows: Rows
    merged: Rows
    together: bool = False


def vision_config(module: ModuleType, f: Fields) -> TransformerConfig:
    """Read `vision_config` of a config.json by an encoder's module; raises as
    `TransformerConfig.of`."""
    return TransformerConfig.of(module, f.mapping("vision_config"), f.file)


def graph_of(
    c: TransformerConfig, width: int, write: Callable[[GraphBuilder, Value], Any]
) -> Graph:
    """Return the graph of what `write` adds behind rows of so many columns."""
    g = GraphBuilder(c.heads, one_layer=True)
    write(g, g.previous_hidden_states(width))
    g.without_adapters("")
    return g.graph
