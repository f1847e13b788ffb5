"""Maple: experts in every layer, windows in three of four, and rotations only where there is one.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + experts(norm(x))
    an expert's FFN: down(silu(min(gate, 7)) * up), of an up within -7 and 7

Published weights are ternary in floats, with a scale for each row, and run as such.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import (
    EXPERT_CLAMP,
    EXPERTS,
    QK_NORMS,
    READS,
    SWA_ROTATED,
    GgufArchitecture,
)
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import partly_rotated

ARCHITECTURES = ("MapleForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 4096}
    | {"num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4}
    | {"head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6}
    | {"partial_rotary_factor": 0.5, "attention_bias": False, "sliding_window": 512}
    | {"nope_on_global_attention": True, "num_experts": 256, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 512, "norm_topk_prob": True, "num_shared_experts": 0}
    | {"moe_router_enable_expert_bias": False}
)
ALIASES = {"use_bias": "attention_bias"}
PREFIXES = {"model.word_embeddings.": "model.embed_tokens."}
GGUF = {
    "maple": GgufArchitecture(
        ARCHITECTURES[0],
        modules=EXPERTS | READS | QK_NORMS,
        experts="moe_intermediate_size",
        partial=True,
        period=4,
        reads=(SWA_ROTATED, EXPERT_CLAMP),
    )
}
LIMIT = 7.0


def complete(f: Fields) -> dict[str, Any]:
    """Return windows with the token itself, which fields leave out, and the layers' rotations."""
    for name in ("attention_bias", "moe_router_enable_expert_bias"):
        f.supported(name, f.flag(name), False)
    f.supported("num_shared_experts", moe.optional_count(f, "num_shared_experts"), 0)
    types = f.items("layer_types", f.n_layers, (FULL, SLIDING))
    types = types or [FULL if i % 4 == 3 else SLIDING for i in range(f.n_layers)]
    derived = {"layer_types": types, "sliding_window": f.count("sliding_window") + 1}
    if f.flag("nope_on_global_attention"):
        derived["no_rope_layers"] = [int(kind == SLIDING) for kind in types]
    return derived | partly_rotated(f)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    of_all = not m.config.fields.flag("norm_topk_prob")
    experts = moe.ExpertFields.of(m.config.fields, "moe_intermediate_size", of_all=of_all)
    attention = AttentionOptions(qk_norm=QKNorm())
    return llama.build(m, attention=attention, ffn=moe.ffn(experts, limit=LIMIT))
