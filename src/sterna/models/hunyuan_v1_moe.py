"""Hunyuan-A13B: the dense models' graph, whose FFNs are experts and one that all tokens use.

    x = x + o(attention(norm(rope(q)), norm(rope(k)), v))
    x = x + experts(norm(x)) + shared(norm(x))

The shares of a token's experts add up to 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import hunyuan_v1_dense, llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import EXPERTS, READS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("HunYuanMoEV1ForCausalLM",)
DEFAULTS: dict[str, Any] = hunyuan_v1_dense.DEFAULTS | {"num_experts": 1, "num_experts_per_tok": 1}
ALIASES = {"moe_topk": "num_experts_per_tok"}
GGUF = {
    "hunyuan-moe": GgufArchitecture(
        ARCHITECTURES[0],
        modules=EXPERTS
        | READS
        | {"mlp.gate.wg": "ffn_gate_inp", "self_attn.query_layernorm": "attn_q_norm"}
        | {"self_attn.key_layernorm": "attn_k_norm"}
        | {"mlp.shared_mlp.gate_proj": "ffn_gate_shexp"}
        | {"mlp.shared_mlp.up_proj": "ffn_up_shexp"}
        | {"mlp.shared_mlp.down_proj": "ffn_down_shexp"},
        experts="intermediate_size",
    )
}
NAMES = moe.Names(router="gate.wg", shared="shared_mlp", shared_gate="")


def complete(f: Fields) -> dict[str, Any]:
    """Return the base of the rotations, and numbers that published files have for each layer."""
    one = {name: _of_all(f, name) for name in ("num_experts", "num_experts_per_tok")}
    for name, only in (
        ("moe_intermediate_size", f.count("intermediate_size")),
        ("num_shared_expert", 1),
    ):
        if f.config.get(name) is not None:
            f.supported(name, _of_all(f, name), only)
    return {**hunyuan_v1_dense.complete(f), **one}


def _of_all(f: Fields, name: str) -> int:
    """Return a count that a file has once, or for each layer the same."""
    value = f.config[name]
    if isinstance(value, list) and value:
        f.supported(name, value, value[:1] * len(value))
        return f.having({name: value[0]}).count(name)
    return f.count(name)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    experts = moe.ExpertFields.of(m.config.fields, "intermediate_size")
    experts = replace(experts, shared=experts.width)
    attention = AttentionOptions(qk_norm=hunyuan_v1_dense.QK_NORM)
    return llama.build(m, attention=attention, ffn=moe.ffn(experts, names=NAMES))
