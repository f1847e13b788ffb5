"""Mixtral: Mistral's graph, whose FFNs are experts. arXiv 2401.04088.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x))

The shares of a token's two experts add up to 1.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, mistral, moe
from sterna.models.builder import ModelBuilder
from sterna.models.gguf_architecture import ATTENTION, READS, GgufArchitecture
from sterna.models.mistral import complete as complete

ARCHITECTURES = ("MixtralForCausalLM",)
DEFAULTS: dict[str, Any] = (
    mistral.DEFAULTS
    | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None, "num_experts_per_tok": 2}
    | {"num_experts": 8}
)
#: Files of Mixtral have Llama's name.
GGUF_WITH_EXPERTS = {
    "llama": GgufArchitecture(
        ARCHITECTURES[0],
        modules=ATTENTION
        | READS
        | {"block_sparse_moe.gate": "ffn_gate_inp"}
        | {"block_sparse_moe.experts.w1": "ffn_gate_exps"}
        | {"block_sparse_moe.experts.w3": "ffn_up_exps"}
        | {"block_sparse_moe.experts.w2": "ffn_down_exps"}
        | {"block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps"},
        permuted=True,
        experts="intermediate_size",
    )
}
MODULE = "block_sparse_moe"
#: A checkpoint's names of the parts of a layer of experts.
NAMES = moe.Names("gate", "experts.{}.w1", "experts.{}.w3", "experts.{}.w2")


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    experts = moe.ExpertFields.of(m.config.fields, "intermediate_size")
    return llama.build(m, ffn=moe.ffn(experts, names=NAMES, module=MODULE))
