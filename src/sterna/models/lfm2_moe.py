"""LFM2 with experts (8B-A1B): LFM2's graph, whose FFNs are experts after the first layers. arXiv
2511.23404.

Sigmoids are scores; those with a bias choose, and the shares of a token's experts add up to 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import lfm2, mixtral, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON, without
from sterna.models.lfm2 import complete as complete

ARCHITECTURES = ("Lfm2MoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(COMMON, "hidden_act")
    | {"vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168}
    | {"moe_intermediate_size": 1792, "num_key_value_heads": 8, "max_position_embeddings": 128000}
    | {"rope_theta": 1e6, "tie_word_embeddings": True, "norm_eps": 1e-5, "conv_bias": False}
    | {"conv_L_cache": 3, "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts": 32}
    | {"use_expert_bias": True, "routed_scaling_factor": 1.0, "norm_topk_prob": True}
)
_MODULE = "feed_forward"
GGUF = {
    "lfm2moe": replace(
        lfm2.GGUF["lfm2"],
        architecture=ARCHITECTURES[0],
        modules=lfm2.GGUF["lfm2"].modules
        | {f"{_MODULE}.gate": "ffn_gate_inp", f"{_MODULE}.experts.w1": "ffn_gate_exps"}
        | {f"{_MODULE}.experts.w3": "ffn_up_exps", f"{_MODULE}.experts.w2": "ffn_down_exps"}
        | {f"{_MODULE}.experts.gate_up_proj": "ffn_gate_up_exps"},
        arrays={f"{_MODULE}.expert_bias": "exp_probs_b.bias"},
        keys={"shortconv.l_cache": "conv_L_cache", "leading_dense_block_count": "num_dense_layers"},
        reads=("expert_gating_func",),
        experts="moe_intermediate_size",
    )
}
PREFIXES = lfm2.PREFIXES


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    experts = moe.ExpertFields.of(f, "moe_intermediate_size", of_all=not f.flag("norm_topk_prob"))
    scale = f.factor("routed_scaling_factor")
    experts = replace(experts, scoring=Scoring("sigmoid", scale=scale, added=1e-6))
    names = replace(mixtral.NAMES, bias="expert_bias" if f.flag("use_expert_bias") else "")
    dense = moe.optional_count(f, "num_dense_layers")

    def ffn(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
        if layer < dense:
            return lfm2.feed_forward(m, h, x, layer, name)
        return moe.feed_forward(m, h, x, name, experts, names=names)

    return lfm2.build(m, ffn)
