"""Fields of config.json of architectures with recurrent layers, from the keys of their GGUF files.

Functions are as in `architecture_fields`.
"""

from __future__ import annotations

from typing import Any

from sterna.gguf.file import GgufModel
from sterna.gguf.value_heads import tiled_out_proj
from sterna.models import falcon_mamba, jamba
from sterna.models.config import FULL
from sterna.models.qwen3_5 import LINEAR, TILED_OUT_PROJ

__all__ = [
    "delta_net_fields",
    "falcon_h1_fields",
    "granite_hybrid_fields",
    "jamba_fields",
    "kimi_fields",
    "mamba2_fields",
    "mamba_fields",
    "mixers",
    "nemotron_h_fields",
    "qwen3_next_fields",
]


def delta_net_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of recurrent layers, and which have columns in ggml's order."""
    m = model.metadata
    v_heads, inner = (m.integer(f"{name}.ssm.{key}") for key in ("time_step_rank", "inner_size"))
    if not v_heads or inner % v_heads:
        raise m.error(f"{name}.ssm.inner_size", f"a multiple of time_step_rank={v_heads}", inner)
    rope, key = fields["rope_parameters"], f"{name}.rope.dimension_sections"
    if key in m:
        rope = {**rope, "mrope_section": m.numbers(key, 4)[:3].tolist()}
    k_heads = m.integer(f"{name}.ssm.group_count")
    tiled = tiled_out_proj(model, inner // v_heads, fields.get("folded_hadamard"))
    return {
        "full_attention_interval": m.integer(f"{name}.full_attention_interval", 4),
        "linear_conv_kernel_dim": m.integer(f"{name}.ssm.conv_kernel"),
        "linear_key_head_dim": m.integer(f"{name}.ssm.state_size"),
        "linear_value_head_dim": inner // v_heads,
        "linear_num_key_heads": k_heads,
        "linear_num_value_heads": v_heads,
        "rope_parameters": rope,
        **({TILED_OUT_PROJ: tiled} if tiled and 1 < k_heads < v_heads else {}),
    }


def qwen3_next_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of recurrent layers, whose value heads are in the checkpoint's order."""
    found = delta_net_fields(model, name, fields)
    return {field: value for field, value in found.items() if field != TILED_OUT_PROJ}


def _each(model: GgufModel, name: str, key: str, fields: dict[str, Any]) -> list[int]:
    """Return a number for each layer; files have one for each block, MTP layers too."""
    m = model.metadata
    blocks = m.each(f"{name}.{key}", m.integer(f"{name}.block_count"))
    return blocks[: fields["num_hidden_layers"]]


def mixers(model: GgufModel, name: str, fields: dict[str, Any], other: str) -> dict[str, Any]:
    """Return the KV heads, and which layers attend: those that have any; others are of a kind."""
    heads = _each(model, name, "attention.head_count_kv", fields)
    if len({*heads} - {0}) != 1:
        rule = "0 in layers that do not attend, and the same number in all others"
        raise model.metadata.error(f"{name}.attention.head_count_kv", rule, heads)
    return {"num_key_value_heads": max(heads), "layer_types": [FULL if n else other for n in heads]}


def _state_space(model: GgufModel, name: str) -> dict[str, Any]:
    """Return the features of a head of Mamba-2, and whether its convolution has a bias."""
    m = model.metadata
    heads, inner = (m.integer(f"{name}.ssm.{key}") for key in ("time_step_rank", "inner_size"))
    if not heads or inner % heads:
        raise m.error(f"{name}.ssm.inner_size", f"a multiple of time_step_rank={heads}", inner)
    return {"mamba_d_head": inner // heads, **_conv_bias(model)}


def _conv_bias(model: GgufModel) -> dict[str, Any]:
    biased = any(tensor.endswith(".ssm_conv1d.bias") for tensor in model.tensors)
    return {"mamba_conv_bias": biased}


def _scan(model: GgufModel, name: str) -> dict[str, Any]:
    """Return the rank of Mamba's steps, and whether its convolution has a bias."""
    rank = model.metadata.integer(f"{name}.ssm.time_step_rank")
    return {"mamba_dt_rank": rank, **_conv_bias(model)}


#: Of a model without attention.
_NOTHING: dict[str, Any] = dict.fromkeys(("head_dim", "num_attention_heads", "num_key_value_heads"))


def mamba2_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of a model whose layers are all Mamba-2; nothing attends."""
    return {**_state_space(model, name), **_NOTHING}


def mamba_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Return the width of layers that are all Mamba; Falcon's class says the epsilon of norms."""
    m, normed = model.metadata, f"{name}.ssm.dt_b_c_rms"
    eps = falcon_mamba.DEFAULTS["mixer_rms_eps"] if normed in m and m.boolean(normed) else None
    inner = m.integer(f"{name}.ssm.inner_size")
    return {"intermediate_size": inner, "mixer_rms_eps": eps, **_scan(model, name), **_NOTHING}


def jamba_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kinds of layers, and which of them have experts: those with a router."""
    m, hidden, key = model.metadata, fields["hidden_size"], f"{name}.ssm.inner_size"
    inner = m.integer(key)
    if inner % hidden:
        raise m.error(key, f"a multiple of embedding_length={hidden}", inner)
    routers = (f"blk.{i}.ffn_gate_inp.weight" for i in range(fields["num_hidden_layers"]))
    return {
        **mixers(model, name, fields, LINEAR),
        **_scan(model, name),
        "mamba_expand": inner // hidden,
        jamba.FFNS: [jamba.SPARSE if r in model.tensors else jamba.DENSE for r in routers],
    }


def granite_hybrid_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kinds of layers, the width of the shared FFN, and whether keys are rotated."""
    m, rotates = model.metadata, f"{name}.rope.scaling.finetuned"
    return {
        **mixers(model, name, fields, LINEAR),
        **_state_space(model, name),
        "shared_intermediate_size": m.integer(f"{name}.expert_shared_feed_forward_length", 0)
        or fields["intermediate_size"],
        "position_embedding_type": "rope" if rotates not in m or m.boolean(rotates) else None,
    }


def falcon_h1_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of Mamba-2 and whether it has a norm; multipliers are within the weights."""
    normed = "blk.0.ssm_norm.weight" in model.tensors
    return {**_state_space(model, name), "mamba_rms_norm": normed}


def kimi_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kinds of layers and their heads; shares of experts add up to 1 there."""
    m = model.metadata
    return {
        "layer_types": mixers(model, name, fields, LINEAR)["layer_types"],
        "linear_num_heads": fields["num_attention_heads"],
        "linear_head_dim": m.integer(f"{name}.kda.head_dim"),
        "linear_conv_kernel_dim": m.integer(f"{name}.ssm.conv_kernel"),
        "norm_topk_prob": True,
    }


def nemotron_h_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kind of each layer, by its numbers of KV heads and of features."""
    m, experts = model.metadata, f"{name}.expert_shared_feed_forward_length"
    widths = _each(model, name, "feed_forward_length", fields)
    ffn = "moe" if m.integer(f"{name}.expert_count", 0) else "mlp"
    found = mixers(model, name, fields, LINEAR)
    listed = zip(widths, found["layer_types"], strict=True)
    kinds = [ffn if width else kind for width, kind in listed]
    found |= {"layer_types": None, "layers_block_type": kinds, **_state_space(model, name)}
    if ffn == "mlp":
        return {**found, "intermediate_size": max(widths)}
    return {
        **found,
        "intermediate_size": max(widths),
        "moe_shared_expert_intermediate_size": m.integer(experts),
        "moe_latent_size": m.integer(f"{name}.moe_latent_size", 0) or None,
    }
