"""Fields of config.json that files of mixtures of experts and of latent attention have.

Functions are as in `architecture_fields`.
"""

from __future__ import annotations

from typing import Any

from sterna.errors import UnsupportedModelError, brief
from sterna.gguf.file import GgufModel
from sterna.gguf.metadata import require_neutral
from sterna.models import maple
from sterna.models.gguf_architecture import EXPERT_CLAMP

__all__ = [
    "cohere2_moe_fields",
    "deepseek2_fields",
    "deepseek_fields",
    "glm4_moe_fields",
    "latent_fields",
    "llama4_fields",
    "maple_fields",
    "minimax_fields",
    "phimoe_fields",
]

_SIGMOID = 2  # of expert_gating_func


def deepseek_fields(
    model: GgufModel, name: str, fields: dict[str, Any], kinds: tuple[int, ...] = (0, _SIGMOID)
) -> dict[str, Any]:
    """Return what DeepSeek V3's router is told; a file may leave out its sigmoids.

    kinds: the allowed values of expert_gating_func.
    """
    m = model.metadata
    if name != "deepseek2":
        require_neutral(m, f"{name}.expert_gating_func", kinds)
    normalised = f"{name}.expert_weights_norm"
    return {
        "n_shared_experts": m.integer(f"{name}.expert_shared_count", 0),
        "first_k_dense_replace": m.integer(f"{name}.leading_dense_block_count", 0),
        "routed_scaling_factor": m.number(f"{name}.expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": m.boolean(normalised) if normalised in m else False,
        "n_group": m.integer(f"{name}.expert_group_count", 0) or 1,
        "topk_group": m.integer(f"{name}.expert_group_used_count", 0) or 1,
    }


def cohere2_moe_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kind of norms, the width of dense FFNs, and how experts are chosen."""
    m, attention = model.metadata, f"{name}.attention"
    found, dense = deepseek_fields(model, name, fields, (0, 1, _SIGMOID)), "blk.0.ffn_gate.weight"
    softmax = m.integer(f"{name}.expert_gating_func", 0) == 1
    rms = f"{attention}.layer_norm_rms_epsilon" in m
    return {
        "num_shared_experts": found["n_shared_experts"],
        "first_k_dense_replace": found["first_k_dense_replace"],
        "norm_topk_prob": found["norm_topk_prob"],
        "expert_selection_fn": "softmax" if softmax else "sigmoid",
        "rms_norm_eps": fields["rms_norm_eps"] if rms else None,
        "layer_norm_eps": fields["rms_norm_eps"],
        "intermediate_size": fields["expert_width"],
        # The key of dense layers has the experts' width.
        "prefix_dense_intermediate_size": model.tensors[dense].shape[0]
        if dense in model.tensors
        else None,
    }


def glm4_moe_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the router's fields, and which tensors of attention there are."""
    found = {
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in model.tensors,
    }
    return found | deepseek_fields(model, name, fields)


def llama4_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the width of dense FFNs, and what no key says; llama.cpp knows Maverick by its number
    of experts."""
    m = model.metadata
    key = f"{name}.attention.sliding_window"
    whole = key in m and m.integer(key, 0) == 0
    return {
        "intermediate_size_mlp": m.integer(f"{name}.feed_forward_length"),
        "use_qk_norm": fields["num_experts"] != 128,
        **({"attention_chunk_size": None, "no_rope_layer_interval": 1 << 16} if whole else {}),
    }


def phimoe_fields(model: GgufModel, _: str, __: dict[str, Any]) -> dict[str, Any]:
    """Return whether the head has a bias."""
    return {"lm_head_bias": "output.bias" in model.tensors}


def minimax_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Refuse a router that is none of sigmoids."""
    require_neutral(model.metadata, f"{name}.expert_gating_func", (0, _SIGMOID))
    return {}


def latent_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of latent attention; files of llama.cpp's first kind have other keys."""
    m, heads = model.metadata, fields["num_attention_heads"]
    of = f"{name}.attention"
    rotated = m.integer(f"{name}.rope.dimension_count")
    key = f"{of}.key_length_mla" if f"{of}.key_length_mla" in m else f"{of}.key_length"
    if m.integer(key) <= rotated:
        raise m.error(key, f"more than {name}.rope.dimension_count={rotated}", m.integer(key))
    values = m.integer(f"{of}.value_length", fields["hidden_size"] // heads)
    return {
        "kv_lora_rank": m.integer(f"{of}.kv_lora_rank"),
        "q_lora_rank": m.integer(f"{of}.q_lora_rank", 0) or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": m.integer(key) - rotated,
        "v_head_dim": m.integer(f"{of}.value_length_mla", values),
        "num_key_value_heads": heads,
    }


def deepseek2_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of latent attention and the router's fields; sigmoids are DeepSeek V3's."""
    found = latent_fields(model, name, fields) | deepseek_fields(model, name, fields)
    if any(tensor.endswith(".exp_probs_b.bias") for tensor in model.tensors):
        return found
    softmax = (0, 1)
    require_neutral(model.metadata, f"{name}.expert_gating_func", softmax)
    method = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return found | {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": method}


def maple_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Check that experts' gates have the clamp that the graph has."""
    m, key = model.metadata, f"{name}.{EXPERT_CLAMP}"
    if key in m and (m.numbers(key, fields["num_hidden_layers"]) != maple.LIMIT).any():
        raise UnsupportedModelError(
            f"{m.path}: {key} must be absent or {maple.LIMIT} in all layers, "
            f"but got {brief(m.array(key).tolist())}; Sterna does not run this variant"
        )
    return {}
