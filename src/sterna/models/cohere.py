"""Cohere's Command R, its first generation: LayerNorm without biases, and attention and FFN side by
side.

    x = x + o(attention(rope(q, k), v)) + down(silu(gate) * up)

Both read the same LayerNorm(x). Neighbours are rotated together, and logits have a factor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.graph import GraphBuilder, Value
from sterna.models import layers, llama
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("CohereForCausalLM",)
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **COMMON, "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
    "logit_scale": 0.0625, "num_hidden_layers": 40, "num_attention_heads": 64,
    "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": True, "attention_bias": False, "use_qk_norm": False,
}  # fmt: skip
GGUF = {
    "command-r": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**LINEARS, "input_layernorm": "attn_norm"},
        keys={"logit_scale": "logit_scale"}, renamed={"rms_norm_eps": "layer_norm_eps"},
        layer_norm=True,
    )
}  # fmt: skip


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms and the kind of rotations, by the names of other files."""
    f.supported("use_qk_norm", f.flag("use_qk_norm"), False)
    return {"rms_norm_eps": f.number("layer_norm_eps"), "rope_interleaved": True}


def build(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, *,
    ffn: llama.FeedForward | None = None, rms: bool = False,
) -> Value:  # fmt: skip
    """Write the model's layers into `g`; returns the logits.

    ffn: replaces `llama.feed_forward`. rms: norms are RMSNorms.
    """
    attention = layers.AttentionOptions(bias=c.attention_bias)
    x, table = layers.embedding(g, c, w)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = _norm(g, c, w, x, f"{p}.input_layernorm", rms)
        a = layers.attention(g, c, w, h, i, f"{p}.self_attn", attention)
        x = layers.output(g, c, w, a, x, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        if ffn is not None:
            x = ffn(h, x, i, f"{p}.mlp")
        else:
            x = llama.feed_forward(g, c, w, h, x, f"{p}.mlp")
    x = _norm(g, c, w, g.select(x), "model.norm", rms, c.fields.factor("logit_scale"))
    return layers.logits(g, c, w, x, table)


def _norm(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, name: str, rms: bool,
    factor: float = 1.0,
) -> Value:  # fmt: skip
    if not rms:
        return layers.layer_norm(g, c, w, x, name, bias=False, factor=factor)
    weight = layers.norm_weight(w, name, x.width) * np.float32(factor)
    return g.norm(x, weight, c.rms_norm_eps, name)
