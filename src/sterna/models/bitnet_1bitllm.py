"""1bitLLM's reproduction of BitNet b1.58 (BitnetForCausalLM, with a small n): -large and -3B.

BitNet's layers with SiLU in place of relu^2, under other names. arXiv 2402.17764.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import bitnet, llama
from sterna.models.builder import ModelBuilder
from sterna.models.gguf_architecture import LINEARS, READS, GgufArchitecture

ARCHITECTURES = ("BitnetForCausalLM",)
TERNARY = True  # published as masters
DEFAULTS: dict[str, Any] = llama.DEFAULTS
GGUF = {
    "bitnet": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS
        | READS
        | {"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"},
    )
}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return bitnet.write(m, "self_attn.inner_attn_ln", "mlp.ffn_layernorm")
