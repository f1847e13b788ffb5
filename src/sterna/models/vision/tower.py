"""`Tower`: what makes vectors of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.graph import Graph, GraphBuilder, Piece, Value
from sterna.graph.ops import CopyOp
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.weights.sources import WeightSource

__all__ = ["Encoder", "Grid", "Tower", "cells", "graph_of", "rotated_by_tower", "vision_config"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
#: Frames, rows and columns of patches or tiles; of LLaVA 1.6, lines of tiles, and the rows and
#: columns of their patches without padding; None where all images have the same.
Grid = tuple[int, int, int] | None


@dataclass(frozen=True, eq=False)
class Encoder:
    """The layers that make features of patches, all of which see each other.

    rows: (the pixels of a tile or an image, its grid) -> the input of `graph`, float32
    [patches, columns].
    shape: (the number of tiles, the grid) -> the shape of an image's pixels.
    coordinates: the grid -> int32 [patches, 3], for rotations that have axes.
    tables: the weights that `rows` reads. n_rows: the rows of a tile, if all have the same size.
    windows: the grid -> the number of rows of each window in turn, for `windowed` attention.
    """

    graph: Graph
    rows: Callable[[F32, Grid], F32]
    shape: Callable[[int, Grid], tuple[int, ...]]
    coordinates: Callable[[Grid], I32] | None = None
    tables: tuple[F32, ...] = ()
    n_rows: int = 0
    windows: Callable[[Grid], Sequence[int]] | None = None


@dataclass(frozen=True, eq=False)
class Tower:
    """The encoder of a model's images, and the projector to the text's width.

    merged: the features of a tile's patches -> the input of the projector, a row for each token.
    width: the columns of the projector's output. The first ones stand in the place of an embedding,
    and `FeaturesOp` adds the others.
    tokens: (the number of tiles, the grid) -> the number of an image's tokens.
    arranged: the projector's rows of all tiles in turn -> the rows of the image's tokens; tables:
    the weights that it reads.
    image_token: the id at whose positions the rows stand.
    together: tokens of an image attend to each other in both directions.
    places: the grid -> the coordinates of an image's tokens relative to the first, int32
    [tokens, 3]; text that follows continues after the largest.
    """

    encoder: Encoder
    projector: Graph
    width: int
    image_token: int
    merged: Callable[[F32, Grid], F32]
    tokens: Callable[[int, Grid], int]
    together: bool = False
    places: Callable[[Grid], I32] | None = None
    arranged: Callable[[F32, Grid], F32] = lambda rows, _: rows
    tables: tuple[F32, ...] = ()


def cells(grid: Grid) -> int:
    """Count the patches or tiles of a grid; 0 without one."""
    return 0 if grid is None else grid[1] * grid[2]


def vision_config(module: ModuleType, f: Fields) -> TransformerConfig:
    """Read `vision_config` of a config.json by an encoder's module; raises as
    `TransformerConfig.of`."""
    return TransformerConfig.of(module, f.mapping("vision_config"), f.file)


def rotated_by_tower(f: Fields) -> dict[str, Any]:
    """Return fields of an encoder that has no tokens, and whose tower makes the rotations."""
    rope = f.mapping("rope_parameters")
    return {
        "vocab_size": 1,
        "max_position_embeddings": 1 << 20,
        "use_bidirectional_attention": True,
        "no_rope_layers": [0] * f.n_layers,
        "tie_word_embeddings": True,
        "rope_theta": f.having({**f.config, **rope}).number("rope_theta"),
        "rope_parameters": {},
    }


def graph_of(
    c: TransformerConfig, w: WeightSource, width: int, write: Callable[[ModelBuilder, Value], Any]
) -> Graph:
    """Return the graph that `write` adds after rows of `width` columns."""
    g = GraphBuilder(c.heads, one_layer=True)
    write(
        ModelBuilder(g, c, w),
        g.add(CopyOp(name="previous_hidden_states", output=Value(width), x=None)),
    )
    g.graph.remove_places("")
    last = g.graph.ops[-1].output
    if sum(op.output is last for op in g.graph.ops) > 1:  # a program ends with the last buffer made
        g.place(last.width, [(last, Piece(last.width))], "rows")
    return g.graph
