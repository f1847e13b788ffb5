"""Granite 3 with experts: Granite's graph, whose FFNs are experts.

    x = x + r o(attention(rope(q, k), v));   x = x + r experts(norm(x))

The shares of a token's experts add up to 1. A checkpoint has one tensor for all experts.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import granite, moe
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, FACTORS, READS, GgufArchitecture

ARCHITECTURES = ("GraniteMoeForCausalLM",)
DEFAULTS: dict[str, Any] = without(granite.DEFAULTS, "mlp_bias") | {
    "num_experts_per_tok": 2,
    "num_experts": 8,
}
MODULE = "block_sparse_moe"
#: Files of models with a shared expert have the same name.
GGUF = {
    "granitemoe": GgufArchitecture(
        ARCHITECTURES[0],
        modules=ATTENTION
        | READS
        | {f"{MODULE}.router.layer": "ffn_gate_inp"}
        | {f"{MODULE}.experts.gate_proj": "ffn_gate_exps"}
        | {f"{MODULE}.experts.up_proj": "ffn_up_exps"}
        | {f"{MODULE}.experts.down_proj": "ffn_down_exps"}
        | {f"{MODULE}.input_linear": "ffn_gate_up_exps"}
        | {"shared_mlp.gate_proj": "ffn_gate_shexp", "shared_mlp.up_proj": "ffn_up_shexp"}
        | {"shared_mlp.input_linear": "ffn_gate_up_shexp"}
        | {"shared_mlp.output_linear": "ffn_down_shexp"},
        permuted=True,
        experts="intermediate_size",
        reads=(*FACTORS, "attention.scale"),
    )
}
NAMES = moe.Names(router="router.layer", stacked=("input_linear", "output_linear"))


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return granite.build(m, experts(m.config.fields))


def experts(f: Fields) -> FeedForward:
    """Return an FFN sublayer of experts."""
    experts, factor = moe.ExpertFields.of(f, "intermediate_size"), f.factor("residual_multiplier")
    return moe.ffn(experts, names=NAMES, module=MODULE, factor=factor)
