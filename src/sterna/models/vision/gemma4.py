"""The encoder of Gemma 4: images of any size. Patches are rotated by line and column, and have a
learned position of each.

    x = x + norm(o(attention(rope(norm(q)), rope(norm(k)), norm(v))))
    x = x + norm(down(gelu(gate) * up))

Each sublayer reads RMSNorm(x), and scores are not scaled. Squares of patches become a token: their
mean times sqrt(width). Linear layers of the small models keep their inputs and outputs within
limits.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.graph import Piece, Rotary, Value
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.vision import vit
from sterna.models.vision.patches import average_pool, lines_and_columns
from sterna.models.vision.tower import (
    Encoder,
    Grid,
    Tower,
    cells,
    graph_of,
    rotated_by_tower,
    vision_config,
)
from sterna.weights.sources import WeightSource

ACTIVATION = "gelu_pytorch_tanh"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16}
    | {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64, "rms_norm_eps": 1e-6}
    | {"hidden_act": ACTIVATION, "patch_size": 16, "pooling_kernel_size": 3}
    | {"position_embedding_size": 10240, "rope_theta": 100.0}
)
VIT = vit.Vit(patch_bias=False, patches="patch_embedder.input_proj")
TOWER = VIT.patch_matrix
F32 = npt.NDArray[np.float32]


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of the encoder, whose rotations `tower` makes."""
    return rotated_by_tower(f)


def tower(c: TransformerConfig, w: WeightSource, together: bool) -> Tower:
    """Add the encoder and its projector. together: whether an image's tokens see each other."""
    v = vision_config(sys.modules[__name__], c.fields)
    f, d, t = v.fields, v.hidden_size, VIT.tower
    if v.head_dim % 4:
        f.fail("head_dim", "a multiple of 4, as its halves rotate by pairs", v.head_dim)
    edge, places = f.count("pooling_kernel_size"), f.count("position_embedding_size")
    pixels = 3 * f.count("patch_size") ** 2
    table = w.vector(f"{t}.patch_embedder.position_embedding_table", 2, places, d)
    standard: tuple[F32, ...] = ()
    if f.flag("standardize"):
        standard = (w.vector(f"{t}.std_bias", d), w.vector(f"{t}.std_scale", d))

    def encode(m: ModelBuilder, x: Value) -> None:
        x = vit.embed(m, x, VIT, ())
        for i in range(v.n_layers):
            x = _layer(m, x, i)

    def project(m: ModelBuilder, x: Value) -> None:
        name = "embed_vision.embedding_projection"
        x = m.graph.norm(x, np.ones(d, np.float32), v.rms_norm_eps, f"{name}.norm")
        m.linear(x, name, c.hidden_size)

    def rows(image: F32, grid: Grid) -> F32:
        _, lines, columns = lines_and_columns(grid).T
        return np.concatenate([2 * image - 1, table[0, columns] + table[1, lines]], axis=1)

    def merged(features: F32, grid: Grid) -> F32:
        assert grid is not None
        means = average_pool(features, grid[1], grid[2], edge) * np.float32(d**0.5)
        return np.asarray((means - standard[0]) * standard[1] if standard else means)

    return Tower(
        Encoder(
            graph_of(v, w, pixels + d, encode),
            rows,
            lambda _, grid: (cells(grid), pixels),
            lines_and_columns,
            (table,),
        ),
        graph_of(v, w, d, project),
        c.hidden_size,
        c.fields.count("image_token_id", 258880),
        merged,
        lambda _, grid: cells(grid) // edge**2,
        together,
        tables=standard,
    )


def _layer(m: ModelBuilder, x: Value, i: int) -> Value:
    d, ff = m.config.hidden_size, m.config.intermediate_size
    p, linear = f"{VIT.tower}.encoder.layers.{i}", partial(_linear, m)
    h = m.norm(x, f"{p}.input_layernorm")
    h = _attention(m, h, i, f"{p}.self_attn")
    h = linear(h, f"{p}.self_attn.o_proj", d)
    x = m.norm(h, f"{p}.post_attention_layernorm", residual=x)
    h = m.norm(x, f"{p}.pre_feedforward_layernorm")
    both = m.graph.concatenate([linear(h, f"{p}.mlp.{n}_proj", ff) for n in ("gate", "up")])
    h = linear(m.glu(both, f"{p}.mlp.act"), f"{p}.mlp.down_proj", d)
    return m.norm(h, f"{p}.post_feedforward_layernorm", residual=x)


def _attention(m: ModelBuilder, h: Value, i: int, name: str) -> Value:
    """The first half of a head turns by the column, in pairs of its quarters, the second half by
    the line. The second and the third quarter change places, so that pairs are half a head
    apart."""
    c = m.config
    heads, d, order = c.heads, c.head_dim, [0, 2, 1, 3]
    quarter, column, pieces = d // 4, 0, list[tuple[Value, Piece]]()
    for n, count in zip("qkv", (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads), strict=True):
        x = _linear(m, h, f"{name}.{n}_proj", count * d)
        parts = [(0, 0, d)] if n == "v" else [(q, order[q], quarter) for q in range(4)]
        for begin, to, width in parts:
            at = (begin * quarter, d, column + to * quarter, d)
            pieces.append((x, Piece(width, count, *at)))
        column += count * d
    qkv = m.graph.place(column, pieces, f"{name}.qkv")
    once = _native.inverse_frequencies(c.fields.number("rope_theta"), d // 2)
    rotary = Rotary((*once, *once), axes=(2,) * len(once) + (1,) * len(once))
    norms = [
        m.weights.vector(f"{name}.{n}_norm.weight", d).reshape(4, quarter)[order].reshape(d)
        for n in "qk"
    ]
    attention = replace(c.attention[i], rotary=rotary, scale=1.0)
    norms.append(np.ones(d, np.float32))
    return m.graph.attention(qkv, i, attention, tuple(norms), c.rms_norm_eps, heads=heads)


def _linear(m: ModelBuilder, x: Value, name: str, width: int) -> Value:
    """A linear layer whose input and output stay within limits, if the file has some."""
    x = _clipped(m, x, name, "input")
    return _clipped(m, m.linear(x, f"{name}.linear", width), name, "output")


def _clipped(m: ModelBuilder, x: Value, name: str, end: str) -> Value:
    if not m.config.fields.flag("use_clipped_linears"):
        return x
    largest = float(np.finfo(np.float32).max)
    least, most = (m.weights.vector(f"{name}.{end}_{n}").item() for n in ("min", "max"))
    if (least, most) == (-np.inf, np.inf):
        return x
    limits = (max(least, -largest), min(most, largest))
    return m.graph.activation(x, "clip", f"{name}.{end}", limits)
