"""Phi-3, Phi-3.5 and Phi-4, dense: Llama's graph, with q, k, v and gate, up each stored as one
matrix. arXiv 2404.14219.

A part of each head may be rotated, all layers may have a window, and longer contexts have LongRoPE.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, mistral
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GATE_UP, READS, GgufArchitecture
from sterna.models.options import AttentionOptions
from sterna.models.rope import ORIGINAL, rotated_part, scaling_kind

ARCHITECTURES = ("Phi3ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0}
    | {"sliding_window": None}
)
GGUF = {
    "phi3": GgufArchitecture(
        ARCHITECTURES[0],
        modules=READS
        | {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output"}
        | GATE_UP,
        partial=True,
    )
}
ORIGINAL_CONTEXT = 4096  # the class's default, if a file has none in rope_parameters or outside
OLDER_NAMES = ("su", "yarn")  # of LongRoPE in the first files; this family has no other YaRN


def complete(f: Fields) -> dict[str, Any]:
    """Return the window of all layers, the rotated part of a head, and the scaling's name."""
    head_dim = f.count("hidden_size") // f.count("num_attention_heads")
    head_dim = f.count("head_dim", head_dim, MAX_HEAD_DIM)
    rotary_dim, rope = rotated_part(f, f.mapping("rope_parameters"), head_dim)
    kind = scaling_kind(rope)
    rope["rope_type"] = "longrope" if kind in OLDER_NAMES else kind
    if f.config.get(ORIGINAL) is None:
        rope.setdefault(ORIGINAL, ORIGINAL_CONTEXT)
    return mistral.complete(f) | {
        "rope_parameters": rope,
        "rotary_dim": rotary_dim,
        "partial_rotary_factor": None,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return llama.build(m, attention=AttentionOptions(stored="qkv_proj"), fused_gate_up=True)
