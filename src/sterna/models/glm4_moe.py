"""GLM-4.5, 4.5-Air, 4.6 and 4.7: Llama's graph with experts after the first layers. arXiv
2508.06471.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x))

Half of each head is rotated; q and k may have norms of each head. DeepSeek V3's router: sigmoids,
of which those with a correction bias choose.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import DEEPSEEK_FFN, DEEPSEEK_KEYS, QK_NORMS, GgufArchitecture
from sterna.models.moe import ALIASES as ALIASES
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import partly_rotated

ARCHITECTURES = ("Glm4MoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 151552, "intermediate_size": 10944, "num_hidden_layers": 46}
    | {"num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    | {"rms_norm_eps": 1e-5, "attention_bias": False, "partial_rotary_factor": 0.5}
    | {"moe_intermediate_size": 1408, "num_experts_per_tok": 8, "num_experts": 128}
    | {"n_shared_experts": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
    | {"first_k_dense_replace": 1, "norm_topk_prob": True, "use_qk_norm": False}
)
GGUF = {
    "glm4moe": GgufArchitecture(
        ARCHITECTURES[0],
        modules=DEEPSEEK_FFN
        | QK_NORMS
        | {"input_layernorm": "attn_norm"}
        | {"post_attention_layernorm": "post_attention_norm"},
        arrays={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        partial=True,
        predicts=True,
        experts="moe_intermediate_size",
        reads=DEEPSEEK_KEYS,
    )
}
SKIPPED = moe.SKIPPED
KV_DTYPE = "f16"  # keys may have biases


def complete(f: Fields) -> dict[str, Any]:
    """Return the part of a head that is rotated, and that o has no bias."""
    bias = f.flag("attention_bias")
    return {**partly_rotated(f), "attention_bias": False, "qkv_bias": bias}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    norms = QKNorm() if f.flag("use_qk_norm") else None
    attention = AttentionOptions(bias=f.flag("qkv_bias"), qk_norm=norms)
    return llama.build(m, attention=attention, ffn=moe.deepseek_ffn(m.config.fields))
