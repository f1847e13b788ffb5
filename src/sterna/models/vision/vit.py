"""The layers that encoders of images share.

    x = x + o(attention(q, k, v));   x = x + fc2(act(fc1(x)))

Each half reads a norm of x, and all patches see each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sterna.graph import GraphBuilder, Piece, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.weights.sources import Linear, WeightSource

__all__ = ["Names", "blocks", "complete", "embed"]


@dataclass(frozen=True)
class Names:
    """Names of an encoder's modules in a checkpoint, below `tower`."""

    tower: str = "vision_tower"
    patches: str = "embeddings.patch_embedding"
    layers: str = "encoder.layers"
    norms: tuple[str, str] = ("layer_norm1", "layer_norm2")
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


def embed(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, names: Names,
    *, bias: bool = True,
) -> Value:  # fmt: skip
    """Multiply rows [pixels of a patch | its position] by the patches' matrix, and add the
    positions."""
    d, patch = c.hidden_size, c.fields.count("patch_size")
    kernel = (c.fields.count("num_channels"), patch, patch)
    pixels = x.width - d
    name = names.patch_matrix
    rows = g.place(pixels, [(x, Piece(pixels))], name)
    positions = g.place(d, [(x, Piece(d, begin=pixels))], name)
    part = Linear(name, d, pixels, bias, kernel=kernel)
    return layers.linear(g, c, w, rows, name, [part], residual=positions)


def blocks(g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, names: Names) -> Value:
    """Write all layers."""
    attention = layers.AttentionOptions(bias=True)
    for i in range(c.n_layers):
        p = f"{names.tower}.{names.layers}.{i}"
        h = layers.layer_norm(g, c, w, x, f"{p}.{names.norms[0]}")
        h = layers.attention(g, c, w, h, i, f"{p}.self_attn", attention)
        x = layers.output(g, c, w, h, x, f"{p}.{names.output}", bias=True)
        h = layers.layer_norm(g, c, w, x, f"{p}.{names.norms[1]}")
        up, down = (f"{p}.{name}" for name in names.mlp)
        x = layers.ungated(g, c, w, h, x, (up, down), c.activation)
    return x
