"""Phi-3.5-MoE: Llama's graph with LayerNorms and biases, whose FFNs are two experts of sixteen.
arXiv 2404.14219.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x))

SparseMixer gives the shares: each expert's is its part of a softmax over those near it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import llama, mistral, mixtral, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import Norms
from sterna.models.rope import scaling_kind

ARCHITECTURES = ("PhimoeForCausalLM", "PhiMoEForCausalLM")
DEFAULTS: dict[str, Any] = (
    mixtral.DEFAULTS
    | {"vocab_size": 32064, "intermediate_size": 6400, "num_experts": 16, "attention_bias": False}
    | {"lm_head_bias": False}
)
GGUF = {
    "phimoe": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**mixtral.GGUF_WITH_EXPERTS["llama"].modules},
        experts="intermediate_size",
        biases=("output_norm", "output"),
    )
}
KV_DTYPE = "f16"  # keys may have biases


def complete(f: Fields) -> dict[str, Any]:
    """Return the window of all layers, and the factor of rotations for a longer context."""
    f.supported("num_experts_per_tok", f.count("num_experts_per_tok"), 2)
    rope = f.mapping("rope_parameters")
    if scaling_kind(rope) != "default" and rope.get("short_mscale") is not None:
        inner = f.having(rope)
        factor = inner.factor("short_mscale")
        inner.supported("long_mscale", inner.factor("long_mscale"), factor)
        rope = {**rope, "attention_factor": factor}
    return {**mistral.complete(f), "rope_parameters": rope}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    within = 2 * m.config.fields.number("router_jitter_noise", 0.01)
    scoring = Scoring("sparsemixer", within=within)
    experts = replace(moe.ExpertFields.of(m.config.fields, "intermediate_size"), scoring=scoring)
    ffn = moe.ffn(experts, names=mixtral.NAMES, module=mixtral.MODULE)
    head_bias = m.config.fields.flag("lm_head_bias")
    return llama.build(m, norms=Norms(layer_norm=True), ffn=ffn, head_bias=head_bias)
