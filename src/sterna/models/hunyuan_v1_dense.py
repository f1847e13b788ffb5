"""Hunyuan, dense (0.5B to 7B): Llama's graph with an RMSNorm of every head of q and k behind their
rotation.

    x = x + o(attention(norm(rope(q)), norm(rope(k)), v));   x = x + down(silu(gate) * up)

A context of 256k comes from a larger base of the rotations: theta alpha^(d / (d - 2)), d the width
of a head, where rope_scaling is "dynamic" and has an alpha.
"""

from __future__ import annotations

from typing import Any

from sterna import _native
from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, READS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import scaling_kind

ARCHITECTURES = ("HunYuanDenseV1ForCausalLM",)
DEFAULTS: dict[str, Any] = COMMON | {
    "vocab_size": 290943,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
}
GGUF = {
    "hunyuan-dense": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS
        | READS
        | {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    )
}
QK_NORM = QKNorm(names=("query_layernorm", "key_layernorm"), after_rotation=True)


def complete(f: Fields) -> dict[str, Any]:
    """Return the base of the rotations; UnsupportedModelError for the first code's features."""
    f.supported("use_cla", f.flag("use_cla"), False)
    f.supported("use_qk_norm", f.config.get("use_qk_norm", True), True)
    rope = f.having({"rope_theta": f.number("rope_theta"), **f.mapping("rope_parameters")})
    if scaling_kind(rope.config) != "dynamic" or rope.config.get("alpha") is None:
        return {}
    head_dim = f.count("hidden_size") // f.count("num_attention_heads")
    head_dim = f.count("head_dim", head_dim, MAX_HEAD_DIM)
    if head_dim < 4:
        f.fail("head_dim", "at least 4, where rope_scaling has an alpha", head_dim)
    stretched = _native.power(rope.factor("alpha"), head_dim / (head_dim - 2))
    return {"rope_parameters": {"rope_theta": rope.number("rope_theta") * stretched}}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return llama.build(m, attention=AttentionOptions(qk_norm=QK_NORM))
