"""OLMo 2: Llama's graph with norms after each sublayer instead of before. arXiv 2501.00656.

    x = x + norm(o(attention(rope(norm(q), norm(k)), v)));   x = x + norm(down(silu(gate) * up))

The norms of q and of k are over all of their heads.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import ADDS, LINEARS, QK_NORMS, SWA_BASE, GgufArchitecture
from sterna.models.options import AttentionOptions, Norms, QKNorm

ARCHITECTURES = ("Olmo2ForCausalLM",)
DEFAULTS: dict[str, Any] = COMMON | {
    "vocab_size": 50304,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
}
#: Files of OLMo 3 have the same name, and a window.
GGUF = {
    "olmo2": GgufArchitecture(
        ARCHITECTURES[0], modules=LINEARS | QK_NORMS | ADDS, reads=(SWA_BASE,), period=4
    )
}
NORMS = Norms(pre=(None, None), post=("post_attention_layernorm", "post_feedforward_layernorm"))


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(qk_norm=QKNorm(whole=True))
    return llama.build(m, norms=NORMS, attention=attention)
