"""OLMoE: Llama's graph with norms of all heads of q and k, whose FFNs are experts.
arXiv 2409.02060.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + experts(norm(x))

Shares are a softmax over all experts, so that those of a token's add up to less than 1.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import EXPERTS, QK_NORMS, READS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm

ARCHITECTURES = ("OlmoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16}
    | {"num_attention_heads": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    | {"attention_bias": False, "clip_qkv": None, "num_experts_per_tok": 8, "num_experts": 64}
    | {"norm_topk_prob": False}
)
GGUF = {
    "olmoe": GgufArchitecture(
        ARCHITECTURES[0],
        modules=EXPERTS | READS | QK_NORMS,
        experts="intermediate_size",
        unsaid={"norm_topk_prob": False},
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Refuse limits of q, k and v."""
    f.supported("clip_qkv", f.config.get("clip_qkv"), None)
    return {}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    of_all = not m.config.fields.flag("norm_topk_prob")
    experts = moe.ExpertFields.of(m.config.fields, "intermediate_size", of_all=of_all)
    attention = AttentionOptions(qk_norm=QKNorm(whole=True))
    return llama.build(m, attention=attention, ffn=moe.ffn(experts))
