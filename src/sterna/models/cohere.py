"""Cohere's Command R, its first generation: LayerNorm without biases, and attention and FFN side by
side.

    x = x + o(attention(rope(q, k), v)) + down(silu(gate) * up)

Both read the same LayerNorm(x). Neighbours are rotated together, and logits have a factor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.graph import Value
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("CohereForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "logit_scale": 0.0625}
    | {"num_hidden_layers": 40, "num_attention_heads": 64, "max_position_embeddings": 8192}
    | {"layer_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True}
    | {"attention_bias": False, "use_qk_norm": False}
)
GGUF = {
    "command-r": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**LINEARS, "input_layernorm": "attn_norm"},
        keys={"logit_scale": "logit_scale"},
        renamed={"rms_norm_eps": "layer_norm_eps"},
        layer_norm=True,
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms and the kind of rotations, by the names of other files."""
    f.supported("use_qk_norm", f.flag("use_qk_norm"), False)
    return {"rms_norm_eps": f.number("layer_norm_eps"), "rope_interleaved": True}


def build(m: ModelBuilder, *, ffn: FeedForward | None = None, rms: bool = False) -> Value:
    """Add the model's layers; return the logits.

    ffn: replaces Llama's FFN. rms: norms are RMSNorms.
    """
    c = m.config
    attention = AttentionOptions(bias=c.attention_bias)
    x = m.embedding()
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = _norm(m, x, f"{p}.input_layernorm", rms)
        a = m.attention(h, i, f"{p}.self_attn", attention)
        x = m.output(a, x, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        if ffn is not None:
            x = ffn(m, h, x, i, f"{p}.mlp")
        else:
            x = m.feed_forward(h, x, f"{p}.mlp")
    x = _norm(m, m.select(x), "model.norm", rms, c.fields.factor("logit_scale"))
    return m.logits(x)


def _norm(m: ModelBuilder, x: Value, name: str, rms: bool, factor: float = 1.0) -> Value:
    if not rms:
        return m.layer_norm(x, name, bias=False, factor=factor)
    weight = m.norm_weight(name, x.width) * np.float32(factor)
    return m.graph.norm(x, weight, m.config.rms_norm_eps, name)
