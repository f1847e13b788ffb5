"""GLM-4-0414 and GLM-Z1: GLM-4's graph with norms around each half.

    x = x + norm(o(attention(rope(q, k), v)));   x = x + norm(down(silu(gate) * up))

Each half reads RMSNorm(x).
"""

from __future__ import annotations

from sterna.graph import GraphBuilder, Value
from sterna.models import glm
from sterna.models.config import TransformerConfig
from sterna.models.gguf_architecture import ATTENTION, GATE_UP, READS, GgufArchitecture
from sterna.models.glm import complete as complete
from sterna.models.layers import Norms
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Glm4ForCausalLM",)
ACTIVATION = glm.ACTIVATION
TERNARY = glm.TERNARY
DEFAULTS = glm.DEFAULTS
GGUF = {
    "glm4": GgufArchitecture(
        ARCHITECTURES[0],
        modules={
            **ATTENTION, **GATE_UP, **READS, "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        partial=True, qkv_bias="attention_bias",
    )
}  # fmt: skip
NORMS = Norms(adds=("post_self_attn_layernorm", "post_mlp_layernorm"))


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return glm.write(g, c, w, NORMS)
