"""MiniMax-M2: Llama's graph with norms of all heads of q and k, whose FFNs are experts.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + experts(norm(x))

A part of each head may be rotated. Sigmoids are scores; those with a correction bias choose, and
the shares of a token's experts add up to 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import llama, mixtral, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import QK_NORMS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import partly_rotated

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536}
    | {"num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8}
    | {"head_dim": 128, "max_position_embeddings": 196608, "rms_norm_eps": 1e-6, "rope_theta": 5e6}
    | {"num_experts_per_tok": 8, "num_experts": 256}
)
MODULE = mixtral.MODULE
GGUF = {
    "minimax-m2": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**mixtral.GGUF_WITH_EXPERTS["llama"].modules, **QK_NORMS},
        arrays={f"{MODULE}.e_score_correction_bias": "exp_probs_b.bias"},
        partial=True,
        experts="intermediate_size",
        reads=("expert_gating_func",),
    )
}
NAMES = replace(mixtral.NAMES, bias="e_score_correction_bias")


def complete(f: Fields) -> dict[str, Any]:
    """Return the part of a head that is rotated, if the file says one."""
    named = "partial_rotary_factor"
    said = named in f.config or named in f.mapping("rope_parameters")
    return partly_rotated(f) if said else {}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    experts = moe.ExpertFields.of(m.config.fields, "intermediate_size")
    experts = replace(experts, scoring=Scoring("sigmoid"))
    attention = AttentionOptions(qk_norm=QKNorm(whole=True))
    ffn = moe.ffn(experts, names=NAMES, module=MODULE)
    return llama.build(m, attention=attention, ffn=ffn)
