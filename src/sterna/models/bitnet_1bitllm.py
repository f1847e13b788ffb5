"""1bitLLM's reproduction of BitNet b1.58 (BitnetForCausalLM, with a small n): -large and -3B.

BitNet's layers with SiLU in place of relu^2, under other names. arXiv 2402.17764.
"""

from __future__ import annotations

from sterna.graph import GraphBuilder, Value
from sterna.models import bitnet, llama
from sterna.models.config import TransformerConfig
from sterna.models.gguf_architecture import LINEARS, READS, GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("BitnetForCausalLM",)
ACTIVATION = "silu"
TERNARY = True  # published as masters
DEFAULTS = llama.DEFAULTS
GGUF = {
    "bitnet": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS
        | READS
        | {"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"},
    )
}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return bitnet.write(g, c, w, "self_attn.inner_attn_ln", "mlp.ffn_layernorm")
