"""The layers that encoders of images share, and encoders of images of one size.

    x = x + o(attention(q, k, v));   x = x + fc2(act(fc1(x)))

Each sublayer reads a norm of x, and all patches see each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.graph import Value
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.options import AttentionOptions
from sterna.models.vision.patches import patch_rows
from sterna.models.vision.tower import Encoder, Grid, graph_of
from sterna.weights.sources import WeightSource

__all__ = ["Vit", "blocks", "complete", "embed", "encoder", "side_of"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vit:
    """The parts of an encoder around its layers, and the names of its modules below `tower`.

    class_token: a learned row precedes the patches. patch_bias: the patches' matrix has a bias.
    first_norm, last_norm: names of the norms before the first layer and after the last one; None:
    no norm. stored, parts: `stored` and `names` of `AttentionOptions`.
    """

    class_token: bool = False
    patch_bias: bool = True
    first_norm: str | None = None
    last_norm: str | None = "post_layernorm"
    tower: str = "vision_tower"
    embeddings: str = "embeddings"
    patches: str = "embeddings.patch_embedding"
    layers: str = "encoder.layers"
    norms: tuple[str, str] = ("layer_norm1", "layer_norm2")
    attention: str = "self_attn"
    stored: str = ""
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    output: str = "self_attn.out_proj"
    mlp: tuple[str, str] = ("mlp.fc1", "mlp.fc2")

    @property
    def patch_matrix(self) -> str:
        """The whole name of the patches' matrix, which only a checkpoint with a tower has."""
        return f"{self.tower}.{self.patches}"


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder of patches, for `TransformerConfig`."""
    return {
        "vocab_size": 1,  # it has no tokens
        "max_position_embeddings": 1 << 20,
        "use_bidirectional_attention": True,
        "rms_norm_eps": f.number("layer_norm_eps"),
        "no_rope_layers": [0] * f.n_layers,
        "attention_bias": True,
        "tie_word_embeddings": True,
    }


def side_of(c: TransformerConfig) -> int:
    """Return the patches of an edge of an encoder's square images."""
    return c.fields.count("image_size") // c.fields.count("patch_size")


def encoder(
    vit: Vit, c: TransformerConfig, w: WeightSource, n_layers: int | None = None
) -> Encoder:
    """Add an encoder of square images, with a learned position for each patch.

    n_layers: how many of the first layers, without the last norm.
    """
    d, patch = c.hidden_size, c.fields.count("patch_size")
    channels, e = c.fields.count("num_channels"), f"{vit.tower}.{vit.embeddings}"
    pixels = channels * patch**2
    table = w.vector(f"{e}.position_embedding.weight", side_of(c) ** 2 + vit.class_token, d)
    if vit.class_token:
        table = table.copy()
        table[0] += w.vector(f"{e}.class_embedding", d)

    def write(m: ModelBuilder, x: Value) -> None:
        x = embed(m, x, vit, (channels, patch, patch))
        if vit.first_norm:
            x = m.layer_norm(x, f"{vit.tower}.{vit.first_norm}")
        x = blocks(m, x, vit, n_layers)
        if n_layers is None and vit.last_norm:
            m.layer_norm(x, f"{vit.tower}.{vit.last_norm}")

    def rows(image: F32, grid: Grid) -> F32:
        row = np.zeros((len(table), pixels + d), np.float32)
        row[vit.class_token :, :pixels] = patch_rows(image, patch)
        row[:, pixels:] = table
        return row

    edge = c.fields.count("image_size")
    return Encoder(
        graph_of(c, w, pixels + d, write),
        rows,
        lambda n, _: (n, channels, edge, edge),
        tables=(table,),
        n_rows=len(table),
    )


def embed(m: ModelBuilder, x: Value, vit: Vit, kernel: tuple[int, ...]) -> Value:
    """Multiply rows [pixels of a patch | its position] by the patches' matrix, and add the
    positions."""
    d, pixels, name = m.config.hidden_size, x.width - m.config.hidden_size, vit.patch_matrix
    rows = m.graph.columns(x, pixels, name)
    positions = m.graph.columns(x, d, name, pixels)
    return m.linear(rows, name, d, bias=vit.patch_bias, residual=positions, kernel=kernel)


def blocks(
    m: ModelBuilder,
    x: Value,
    vit: Vit,
    n_layers: int | None = None,
    seen: list[Value] | None = None,
) -> Value:
    """Add the first layers, all if there is no number. seen: gets what each makes."""
    attention = AttentionOptions(bias=True, stored=vit.stored, names=vit.parts)
    for i in range(m.config.n_layers if n_layers is None else n_layers):
        p = f"{vit.tower}.{vit.layers}.{i}"
        h = m.layer_norm(x, f"{p}.{vit.norms[0]}")
        h = m.attention(h, i, f"{p}.{vit.attention}", attention)
        x = m.output(h, x, f"{p}.{vit.output}", bias=True)
        h = m.layer_norm(x, f"{p}.{vit.norms[1]}")
        up, down = (f"{p}.{name}" for name in vit.mlp)
        x = m.ungated(h, x, up, down)
        if seen is not None:
            seen.append(x)
    return x
