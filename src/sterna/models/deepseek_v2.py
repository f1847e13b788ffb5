"""DeepSeek V2, V2-Lite and their Coder models: Llama's graph with latent attention and experts.
arXiv 2405.04434.

    x = x + o(latent attention);   x = x + experts, or down(silu(gate) * up) in the first layers

Each sublayer reads RMSNorm(x). Neighbours are rotated together. A softmax over all experts chooses,
within a few groups of them, and shares are its numbers as they are, times a factor. All tokens use
some experts, which are one FFN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import latent_attention, llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields

ARCHITECTURES = ("DeepseekV2ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 102400, "num_key_value_heads": 32, "kv_lora_rank": 512, "q_lora_rank": 1536}
    | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64}
    | {"first_k_dense_replace": 0, "num_experts": 64, "n_shared_experts": 2, "n_group": None}
    | {"topk_group": None, "topk_method": "greedy", "norm_topk_prob": False}
    | {"routed_scaling_factor": 1.0, "num_experts_per_tok": None, "moe_intermediate_size": 1407}
)
ALIASES = moe.ALIASES
_NAMES = replace(moe.DEEPSEEK_NAMES, bias="")
_METHODS = ("greedy", "group_limited_greedy")


def complete(f: Fields) -> dict[str, Any]:
    """Return the sizes of keys and the kind of rotations."""
    f.supported("scoring_func", f.config.get("scoring_func", "softmax"), "softmax")
    for name in ("norm_topk_prob", "mlp_bias"):
        f.supported(name, f.flag(name), False)
    if f.config["topk_method"] not in _METHODS:
        f.supported("topk_method", f.config["topk_method"], " or ".join(_METHODS))
    return {**latent_attention.latent_fields(f), "rope_interleaved": True}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    ffn = moe.ffn(_experts(m.config.fields), names=_NAMES)
    return llama.build(m, attend=latent_attention.attention, ffn=ffn)


def _experts(f: Fields) -> moe.ExpertFields:
    experts = moe.ExpertFields.of_deepseek(f)
    grouped = f.config["topk_method"] != "greedy"
    groups, chosen = (experts.scoring.groups, experts.scoring.chosen_groups) if grouped else (1, 1)
    scoring = Scoring("softmax", groups=groups, chosen_groups=chosen, scale=experts.scoring.scale)
    return replace(experts, of_all=True, scoring=scoring)
