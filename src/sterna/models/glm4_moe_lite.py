"""GLM-4.7-Flash: DeepSeek V3's graph without groups of experts.

    x = x + o(latent attention);   x = x + experts, or down(silu(gate) * up) in the first layers

Each sublayer reads RMSNorm(x). Layers that predict several tokens are skipped.
"""

from __future__ import annotations

from typing import Any

from sterna.models import deepseek_v3, moe
from sterna.models.config_fields import Fields
from sterna.models.deepseek_v3 import build as build

ARCHITECTURES = ("Glm4MoeLiteForCausalLM",)
DEFAULTS: dict[str, Any] = (
    deepseek_v3.DEFAULTS
    | {"vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240}
    | {"num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20}
    | {"max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "q_lora_rank": 768}
    | {"qk_nope_head_dim": 192, "v_head_dim": 256, "num_experts": 64, "n_group": 1, "topk_group": 1}
    | {"routed_scaling_factor": 1.8, "num_experts_per_tok": 4, "moe_intermediate_size": 1536}
)
for _name in ("first_k_dense_replace", "head_dim"):
    del DEFAULTS[_name]  # the class has no such field
ALIASES = deepseek_v3.ALIASES
SKIPPED = deepseek_v3.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of DeepSeek V3, and how many layers have no experts."""
    return {**deepseek_v3.complete(f), "first_k_dense_replace": moe.dense_first(f, 1)}
