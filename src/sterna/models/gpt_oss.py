"""gpt-oss: experts, whose attention has sinks, and a window in every other layer. arXiv 2508.10925.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x))
    an expert's FFN: down(gate sigmoid(1.702 gate) (up + 1)), of a gate and an up that are clamped

All linear layers have biases, the router as well. The shares of a token's experts add up to 1.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import EXPERTS, GgufArchitecture
from sterna.models.options import AttentionOptions
from sterna.weights.sources import Stacking

ARCHITECTURES = ("GptOssForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880}
    | {"num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64}
    | {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0}
    | {"attention_bias": True, "sliding_window": 128, "num_experts": 128, "num_experts_per_tok": 4}
    | {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
)
GGUF = {
    "gpt-oss": GgufArchitecture(
        ARCHITECTURES[0],
        modules={name: to for name, to in EXPERTS.items() if name != "mlp.gate"}
        | {"mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks"}
        | {"input_layernorm": "attn_norm"}
        | {"post_attention_layernorm": "post_attention_norm"},
        experts="intermediate_size",
        period=2,
    )
}
KV_DTYPE = "f16"  # keys have biases
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
NAMES = moe.Names(router="router")
#: Floats lie transposed; a row of gate is followed by one of up.
STACKING = Stacking(transposed=True, alternating=True)


def complete(f: Fields) -> dict[str, Any]:
    """Return the layers' windows and the rotations, if the file lacks them."""
    f.supported("swiglu_alpha", f.number("swiglu_alpha"), 1.702)
    derived: dict[str, Any] = {}
    if f.config.get("layer_types") is None:
        derived["layer_types"] = [FULL if i % 2 else SLIDING for i in range(f.n_layers)]
    if not f.mapping("rope_parameters"):
        derived["rope_parameters"] = YARN
    return derived


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    experts = moe.ExpertFields.of(m.config.fields, "intermediate_size")
    limit = m.config.fields.factor("swiglu_limit")
    ffn = moe.ffn(
        experts, names=NAMES, bias=True, stacking=STACKING, activation="clamped", limit=limit
    )
    return llama.build(m, attention=AttentionOptions(sinks=True), ffn=ffn)
