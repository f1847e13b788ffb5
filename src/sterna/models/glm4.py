"""GLM-4-0414 and GLM-Z1: GLM-4's graph with norms around each sublayer.

    x = x + norm(o(attention(rope(q, k), v)));   x = x + norm(down(silu(gate) * up))

Each sublayer reads RMSNorm(x).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import glm
from sterna.models.builder import ModelBuilder
from sterna.models.gguf_architecture import ATTENTION, GATE_UP, READS, GgufArchitecture
from sterna.models.glm import complete as complete
from sterna.models.options import Norms

ARCHITECTURES = ("Glm4ForCausalLM",)
DEFAULTS: dict[str, Any] = glm.DEFAULTS
GGUF = {
    "glm4": GgufArchitecture(
        ARCHITECTURES[0],
        modules=ATTENTION
        | GATE_UP
        | READS
        | {"post_self_attn_layernorm": "post_attention_norm"}
        | {"post_mlp_layernorm": "post_ffw_norm"},
        partial=True,
        qkv_bias="attention_bias",
    )
}
NORMS = Norms(post=("post_self_attn_layernorm", "post_mlp_layernorm"))


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return glm.write(m, NORMS)
