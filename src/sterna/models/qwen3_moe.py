"""Qwen3 with experts: Qwen3's graph, whose FFNs are experts in most layers. arXiv 2505.09388.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + experts(norm(x))

Every `decoder_sparse_step`-th layer has experts, but for `mlp_only_layers`, whose FFN is Llama's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import EXPERTS, QK_NORMS, READS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"rms_norm_eps": 1e-6, "attention_bias": False, "vocab_size": 151936, "hidden_size": 2048}
    | {"intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4}
    | {"max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096}
    | {"decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8}
    | {"num_experts": 128, "norm_topk_prob": False}
)
GGUF = {
    "qwen3moe": GgufArchitecture(
        ARCHITECTURES[0], modules=EXPERTS | READS | QK_NORMS, experts="moe_intermediate_size"
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the window, if it is in use; all layers have it."""
    if not f.flag("use_sliding_window") or f.config.get("sliding_window") is None:
        return {"sliding_window": None}
    return {"layer_types": [SLIDING] * f.n_layers}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(qk_norm=QKNorm())
    return llama.build(m, attention=attention, ffn=moe.ffn(experts(m.config.fields)))


def experts(f: Fields, shared: int = 0) -> moe.ExpertFields:
    """Read the experts, and the layers that have none."""
    of_all = not f.flag("norm_topk_prob")
    experts = moe.ExpertFields.of(f, "moe_intermediate_size", of_all=of_all, shared=shared)
    return replace(experts, dense=_dense_layers(f))


def _dense_layers(f: Fields) -> frozenset[int]:
    """Return the layers without experts."""
    listed = f.config.get("mlp_only_layers") or []
    if not isinstance(listed, list) or any(type(i) is not int or i < 0 for i in listed):
        f.fail("mlp_only_layers", "a list of layers' numbers", listed)
    step = f.count("decoder_sparse_step")
    return frozenset(i for i in range(f.n_layers) if i in listed or (i + 1) % step)
