"""ERNIE 4.5 with experts (21B-A3B, 300B-A47B), text only: ERNIE's graph, whose FFNs are experts in
most layers.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x)) + shared(norm(x))

A softmax with a correction bias chooses; the shares of a token's experts add up to 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import ernie4_5, llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import DEEPSEEK_FFN, READS, GgufArchitecture

ARCHITECTURES = ("Ernie4_5_MoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(ernie4_5.DEFAULTS, "head_dim")
    | {"hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28}
    | {"num_attention_heads": 20, "num_key_value_heads": 4, "moe_intermediate_size": 1536}
    | {"num_experts_per_tok": 6, "num_experts": 64, "moe_num_shared_experts": 2}
    | {"moe_layer_start_index": 1, "moe_layer_interval": 1, "moe_norm_min": 1e-12}
)
ALIASES = {"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"}
GGUF = {
    "ernie4_5-moe": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**DEEPSEEK_FFN, **READS},
        arrays={"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
        renamed={"attention_bias": "use_bias"},
        experts="moe_intermediate_size",
        keys={
            "expert_shared_count": "moe_num_shared_experts",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
        },
    )
}
SKIPPED = {"model.mtp_": "of layers that predict several tokens (MTP)"}
NAMES = replace(moe.DEEPSEEK_NAMES, bias="moe_statics.e_score_correction_bias", bias_is_row=True)


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of models without experts; refuse biases, of which the head has one."""
    f.supported("use_bias", f.flag("use_bias"), False)
    return ernie4_5.complete(f)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    experts = moe.ExpertFields.of(f, "moe_intermediate_size")
    experts = replace(
        experts,
        shared=experts.width * moe.optional_count(f, "moe_num_shared_experts"),
        scoring=Scoring(least=f.number("moe_norm_min")),
        dense=_dense_layers(f),
    )
    return llama.build(m, ffn=moe.ffn(experts, names=NAMES))


def _dense_layers(f: Fields) -> frozenset[int]:
    """Return the layers without experts."""
    n, step, end = f.n_layers, f.count("moe_layer_interval"), "moe_layer_end_index"
    first = moe.optional_count(f, "moe_layer_start_index")
    last = n - 1 if f.config.get(end) in (None, -1) else moe.optional_count(f, end)
    return frozenset(i for i in range(n) if (i + 1) % step or not first <= i <= last)
