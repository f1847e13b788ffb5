"""DeepSeek V3, V3.1 and R1: DeepSeek V2's graph, whose experts are chosen by sigmoids with a bias.
arXiv 2412.19437.

    x = x + o(latent attention);   x = x + experts, or down(silu(gate) * up) in the first layers

Each sublayer reads RMSNorm(x). Layers that predict several tokens are skipped.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import latent_attention, llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import (
    ATTENTION,
    DEEPSEEK_FFN,
    DEEPSEEK_KEYS,
    LATENT,
    READS,
    GgufArchitecture,
)

ARCHITECTURES = ("DeepseekV3ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(llama.DEFAULTS, "mlp_bias")
    | {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432}
    | {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
    | {"max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536}
    | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64}
    | {"rope_interleave": True, "first_k_dense_replace": 3, "num_experts": 256}
    | {"n_shared_experts": 1, "n_group": 8, "topk_group": 4, "norm_topk_prob": True}
    | {"routed_scaling_factor": 2.5, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
)
_OF_ATTENTION = {*ATTENTION} - {*LATENT}
GGUF = {
    "deepseek2": GgufArchitecture(
        ARCHITECTURES[0],
        modules={k: v for k, v in DEEPSEEK_FFN.items() if k not in _OF_ATTENTION} | LATENT | READS,
        arrays={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        latent=True,
        predicts=True,
        experts="moe_intermediate_size",
        reads=DEEPSEEK_KEYS,
    )
}
ALIASES = moe.ALIASES
SKIPPED = moe.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the sizes of keys and the kind of rotations."""
    f.supported("scoring_func", f.config.get("scoring_func", "sigmoid"), "sigmoid")
    f.supported("topk_method", f.config.get("topk_method", "noaux_tc"), "noaux_tc")
    interleaved = f.flag("rope_interleave")
    return {**latent_attention.latent_fields(f), "rope_interleaved": interleaved}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    ffn = moe.deepseek_ffn(m.config.fields)
    return llama.build(m, attend=latent_attention.attention, ffn=ffn)
