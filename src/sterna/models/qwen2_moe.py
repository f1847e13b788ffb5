"""Qwen1.5 and Qwen2 with experts: Qwen2's graph, whose FFNs are experts and one that all tokens
use. arXiv 2407.10671.

    x = x + o(attention(rope(q + b_q, k + b_k), v + b_v));   x = x + experts(norm(x))

Layers without experts are those of Qwen3's.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe, qwen3_moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import EXPERTS, GATED_SHARED, READS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("Qwen2MoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(qwen3_moe.DEFAULTS, "attention_bias")
    | {"intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16}
    | {"max_window_layers": 28, "moe_intermediate_size": 1408}
    | {"shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60}
    | {"qkv_bias": True}
)
GGUF = {
    "qwen2moe": GgufArchitecture(
        ARCHITECTURES[0],
        modules=EXPERTS | READS | GATED_SHARED,
        experts="moe_intermediate_size",
        keys={"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        unsaid={"norm_topk_prob": False},
        qkv_bias="qkv_bias",
    )
}
KV_DTYPE = "f16"  # keys have biases, as Qwen2's


def complete(f: Fields) -> dict[str, Any]:
    """Return windows: in every other one of the first max_window_layers layers, if in use."""
    if not f.flag("use_sliding_window"):
        return {"sliding_window": None, "layer_types": None}
    if f.config.get("layer_types") is not None:
        return {}
    first = f.count("max_window_layers")
    kinds = [FULL if i % 2 or i >= first else SLIDING for i in range(f.n_layers)]
    return {"layer_types": kinds}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    how = qwen3_moe.experts(f, shared=f.count("shared_expert_intermediate_size"))
    attention = AttentionOptions(bias=f.flag("qkv_bias"))
    return llama.build(m, attention=attention, ffn=moe.ffn(how))
