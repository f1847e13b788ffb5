"""EXAONE with experts (K-EXAONE 236B-A23B): EXAONE 4's attention in Llama's graph, and DeepSeek
V3's experts.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + experts(norm(x)) + shared(norm(x))

Each sublayer reads RMSNorm(x). Layers without a window have no rotations. The first layers have
dense FFNs; layers that predict several tokens are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import exaone4, llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import (
    DEEPSEEK_FFN,
    DEEPSEEK_KEYS,
    QK_NORMS,
    READS,
    SWA_BASE,
    GgufArchitecture,
)
from sterna.models.options import AttentionOptions, QKNorm

ARCHITECTURES = ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM")
DEFAULTS: dict[str, Any] = (
    exaone4.DEFAULTS
    | {"first_k_dense_replace": 1, "moe_intermediate_size": 1024, "num_experts": 64}
    | {"num_experts_per_tok": 8, "n_shared_experts": 1, "norm_topk_prob": True}
    | {"routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1}
)
ALIASES = {**moe.ALIASES, "num_shared_experts": "n_shared_experts"}
_BIAS = "mlp.e_score_correction_bias"
GGUF = {
    "exaone-moe": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**DEEPSEEK_FFN, **QK_NORMS, **READS},
        arrays={_BIAS: "exp_probs_b.bias"},
        period=4,
        predicts=True,
        experts="moe_intermediate_size",
        reads=(*DEEPSEEK_KEYS, SWA_BASE),
    )
}
SKIPPED = {**moe.SKIPPED, "mtp.": "a layer that predicts several tokens (MTP)"}
NAMES = replace(moe.DEEPSEEK_NAMES, bias=_BIAS.removeprefix("mlp."))


def complete(f: Fields) -> dict[str, Any]:
    """Return EXAONE 4's windows and rotations, and how many layers have no experts."""
    return {**exaone4.complete(f), "first_k_dense_replace": moe.dense_first(f, 1)}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    experts = moe.ExpertFields.of_deepseek(m.config.fields)
    attention = AttentionOptions(qk_norm=QKNorm())
    return llama.build(m, attention=attention, ffn=moe.ffn(experts, names=NAMES))
