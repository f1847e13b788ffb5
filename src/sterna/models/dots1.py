"""dots.llm1: Qwen3's attention, and experts after the first layers. arXiv 2506.05767.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + experts(norm(x))

DeepSeek V3's router: sigmoids, of which those with a correction bias choose.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import (
    DEEPSEEK_FFN,
    DEEPSEEK_KEYS,
    QK_NORMS,
    READS,
    GgufArchitecture,
)
from sterna.models.moe import ALIASES as ALIASES
from sterna.models.options import AttentionOptions, QKNorm

ARCHITECTURES = ("Dots1ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944}
    | {"num_hidden_layers": 62, "num_key_value_heads": 32, "rms_norm_eps": 1e-6}
    | {"attention_bias": False, "sliding_window": 4096, "max_window_layers": 62}
    | {"moe_intermediate_size": 1408, "num_experts_per_tok": None, "num_experts": None}
    | {"n_shared_experts": None, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
    | {"first_k_dense_replace": 0, "norm_topk_prob": False}
)
GGUF = {
    "dots1": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**DEEPSEEK_FFN, **QK_NORMS, **READS},
        arrays={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        experts="moe_intermediate_size",
        reads=DEEPSEEK_KEYS,
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return windows: in the layers from max_window_layers on."""
    if f.config.get("layer_types") is not None or f.config.get("sliding_window") is None:
        return {}
    first = f.count("max_window_layers")
    return {"layer_types": [SLIDING if i >= first else FULL for i in range(f.n_layers)]}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(qk_norm=QKNorm())
    return llama.build(m, attention=attention, ffn=moe.deepseek_ffn(m.config.fields))
