"""What GGUF architectures are in the words of config.json, and the names of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError, brief
from sterna.gguf.file import GgufModel
from sterna.gguf.metadata import Metadata
from sterna.gguf.value_heads import tiled_out_proj
from sterna.models.qwen3_5 import TILED_OUT_PROJ

__all__ = [
    "ARCHITECTURES_OF",
    "BITNET",
    "FULL",
    "NORM_IN",
    "PREDICTING",
    "PROJECTIONS",
    "SLIDING",
    "WITH_EXPERTS",
    "Kind",
    "require_neutral",
]

FULL, SLIDING = "full_attention", "sliding_attention"  # config.json's layer_types
_LINEARS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
#: What ends the names of norms that layers have for their own inputs, in BitNet's embeddings.
NORM_IN = "_norm_in"
_INPUT_NORMS = {f"{module}.rms_norm": f"{to}{NORM_IN}" for module, to in _LINEARS.items()}
_ATTENTION = {name: to for name, to in _LINEARS.items() if name.startswith("self_attn.")}
_QKV = {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output"}
_GATE_UP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_READS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
#: Norms of what the halves add, in Gemma and OLMo 2.
_ADDS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_GEMMA2 = {
    **_LINEARS, **_ADDS, "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm",
}  # fmt: skip
PROJECTIONS = {
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out",
}  # fmt: skip
_RECURRENT = {
    **PROJECTIONS, "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "post_attention_layernorm": "post_attention_norm",
}  # fmt: skip
#: What an MTP layer has beside a layer's modules.
PREDICTING = {
    "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm", "norm": "nextn.shared_head_norm",
}  # fmt: skip
#: Arrays of layers, whose names have no suffix in common with others'.
_RECURRENT_ARRAYS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_ROUTER_ARRAYS = {
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
}  # fmt: skip
#: FFNs of experts, whose tensors are those of all, in the place of a dense one.
_EXPERTS = {
    **{name: to for name, to in _LINEARS.items() if name.startswith("self_attn.")},
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
}  # fmt: skip
_SHARED = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
_GPT_OSS = {
    **{name: to for name, to in _EXPERTS.items() if name != "mlp.gate"},
    "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
}  # fmt: skip
_MIXTRAL = {
    **{name: to for name, to in _LINEARS.items() if name.startswith("self_attn.")},
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps", "block_sparse_moe.experts.w2": "ffn_down_exps",
    "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a GGUF architecture is in the words of config.json.

    modules: of a layer, and their names there. permuted: whether rows of q and k are in the order
    of interleaved rotations; hybrid: whether some layers are recurrent; partial: whether a part of
    a head may be rotated. settings: further fields, of the model, its architecture's name there and
    the fields that all have. reads: keys that it asks for,
    which must be neutral elsewhere (hf_config.py). written: whether Sterna
    writes such files. experts: the field for how wide its experts are; empty: it has none.
    outer: modules beside the layers that other architectures have not. varied: layers may differ in
    KV heads and the width of FFNs. arrays: of a layer, by whole names. period: where some layers
    have a window, every so many-th has none, unless a file says it otherwise. sums: norms of which
    checkpoints store the difference from 1 are stored with the 1 added. layer_norm: norms are
    LayerNorms. by_head: a checkpoint has q, k and v of each head together, files do not. biases: of
    tensors beside the layers.
    """

    architecture: str
    activation: str = "silu"
    modules: Mapping[str, str] = field(default_factory=lambda: _LINEARS | _READS)
    permuted: bool = False
    hybrid: bool = False
    partial: bool = False
    settings: Callable[[GgufModel, str, dict[str, Any]], dict[str, Any]] | None = None
    reads: tuple[str, ...] = ()
    written: bool = False
    experts: str = ""
    outer: Mapping[str, str] = field(default_factory=dict)
    varied: bool = False
    arrays: Mapping[str, str] = field(default_factory=dict)
    period: int = 0
    sums: bool = False
    layer_norm: bool = False
    by_head: bool = False
    biases: tuple[str, ...] = ()


def require_neutral(m: Metadata, key: str, neutral: tuple[object, ...]) -> None:
    """UnsupportedModelError for a key with a value that changes the arithmetic."""
    if key not in m:
        return
    value = m.boolean(key) if isinstance((*neutral, 0)[0], bool) else m.number(key)
    if value not in neutral:
        raise UnsupportedModelError(
            f"{m.path}: {key} must be absent or {' or '.join(map(str, neutral)) or 'default'}, "
            f"but got {brief(value)}; Sterna does not run this variant"
        )


def _hybrid(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
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


def _hybrid_experts(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Recurrent layers, and the width of the expert that all tokens share."""
    shared = model.metadata.integer(f"{name}.expert_shared_feed_forward_length")
    return {**_hybrid(model, name, fields), "shared_expert_intermediate_size": shared}


def _gpt_oss(_: GgufModel, __: str, fields: dict[str, Any]) -> dict[str, Any]:
    """What no key says: YaRN's ramp ends within pairs."""
    return {"rope_parameters": {**fields["rope_parameters"], "truncate": False}}


def _gemma(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Caps and windows. The scale of scores is in no key: 27B models have another than the rest,
    and are known by their layers, as llama.cpp knows them."""
    m = model.metadata
    is_27b = fields["num_hidden_layers"] == {"gemma2": 46, "gemma3": 62}[name]
    width = fields["hidden_size"] // fields["num_attention_heads"]
    scalar = width if is_27b else fields["head_dim"]
    found: dict[str, Any] = {"query_pre_attn_scalar": scalar}
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if f"{name}.{cap}" in m:
            found[cap] = m.number(f"{name}.{cap}") or None
    if name == "gemma3":
        found["rope_local_base_freq"] = m.number(f"{name}.rope.freq_base_swa", 10000.0)
    return found


def _gemma4(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """What layers within a window have, and the others; which keys serve several layers."""
    m, n = model.metadata, fields["num_hidden_layers"]
    windowed = m.flags(f"{name}.attention.sliding_window_pattern", n)
    heads = m.each(f"{name}.attention.head_count_kv", n)
    widths = m.each(f"{name}.feed_forward_length", n)
    shared = m.integer(f"{name}.attention.shared_kv_layers", 0)
    doubled = [widths[0] * (2 if i >= n - shared else 1) for i in range(n)]
    if widths not in (doubled, [widths[0]] * n):
        rule = f"{widths[0]} in all layers, or twice that in the last {shared}"
        raise m.error(f"{name}.feed_forward_length", rule, widths)
    full = [i for i in range(n) if not windowed[i]]
    without_v = {
        f"blk.{i}.attn_v.weight" not in model.tensors for i in full if i < n - shared
    }  # layers that read others' keys have neither
    if len(without_v) > 1:
        rule = "in all layers without a window that have keys, or in none"
        raise ModelFormatError(file=model.path, field="attn_v.weight", expected=rule, got="some")
    of_windows = {heads[i] for i in range(n) if windowed[i]} or {heads[0]}
    if len(of_windows) > 1:
        rule = "the same number in all layers within a window"
        raise m.error(f"{name}.attention.head_count_kv", rule, heads)
    head_dim = m.integer(f"{name}.attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        require_neutral(m, f"{name}.{key}", (head_dim,))
    return {
        "layer_types": [SLIDING if w else FULL for w in windowed],
        "vocab_size_per_layer_input": fields["vocab_size"],
        "num_key_value_heads": min(of_windows),
        "head_dim": head_dim,
        "per_layer_config": {
            str(i): {"head_dim": fields["head_dim"], "num_key_value_heads": heads[i]} for i in full
        },
        # A layer without values of its own takes its keys for them.
        "attention_k_eq_v": True in without_v,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": bool(shared) and widths == doubled,
        "hidden_size_per_layer_input": m.integer(f"{name}.embedding_length_per_layer_input", 0),
        "final_logit_softcapping": m.number(f"{name}.final_logit_softcapping", 0.0) or None,
        "rope_parameters": {
            SLIDING: {"rope_theta": m.number(f"{name}.rope.freq_base_swa", 10000.0)},
            FULL: {
                "rope_theta": fields["rope_theta"],
                "partial_rotary_factor": _turning(m, fields.get("rope_factors")),
            },
        },
        "rope_factors": None,
    }


def _gemma4_experts(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The same with experts, which each layer has as well."""
    return {**_gemma4(model, name, fields), "enable_moe_block": True}


def _turning(m: Metadata, factors: list[float] | None) -> float:
    """The part of the pairs of a head that turn: their factor is 1, that of others beyond reach."""
    if factors is None:
        return 1.0
    turning = factors.count(1.0)
    if factors[:turning] != [1.0] * turning or min(factors[turning:], default=1e30) < 1e29:
        rule = "ones, and 1e30 for the pairs behind that do not turn"
        raise m.error("rope_freqs.weight", rule, factors)
    return turning / len(factors)


def _granite(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    m = model.metadata
    return {
        "attention_multiplier": m.number(f"{name}.attention.scale", fields["head_dim"] ** -0.5),
        "embedding_multiplier": m.number(f"{name}.embedding_scale", 1.0),
        "logits_scaling": m.number(f"{name}.logit_scale", 1.0),
        "residual_multiplier": m.number(f"{name}.residual_scale", 1.0),
    }


def _minicpm(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The multipliers, which older files leave to their readers: those are refused."""
    m = model.metadata
    keys = ("embedding_scale", "residual_scale", "logit_scale")
    embedding, residual, logits = (m.number(f"{name}.{key}") for key in keys)
    if not logits:
        raise m.error(f"{name}.logit_scale", "a number that is not 0", logits)
    return {
        "scale_emb": embedding,
        "scale_depth": residual * fields["num_hidden_layers"] ** 0.5,
        "dim_model_base": fields["hidden_size"] / logits,
    }


def _olmo2(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A file with a window is OLMo 3's; its longer contexts are of the layers without one."""
    if not fields["sliding_window"]:
        return {}
    theta = fields["rope_theta"]
    swa = model.metadata.number(f"{name}.rope.freq_base_swa", theta)
    rope = {FULL: {"rope_theta": theta, **fields["rope_parameters"]}, SLIDING: {"rope_theta": swa}}
    return {"architectures": ["Olmo3ForCausalLM"], "rope_parameters": rope}


def _glm4(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Biases of q, k and v alone; rotations of an image's axes are refused."""
    require_neutral(model.metadata, f"{name}.rope.dimension_sections", ())
    return {"attention_bias": "blk.0.attn_q.bias" in model.tensors}


def _cohere(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    scale = model.metadata.number(f"{name}.logit_scale")
    return {"layer_norm_eps": fields["rms_norm_eps"], "logit_scale": scale}


def _starcoder2(_: GgufModel, __: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"norm_epsilon": fields["rms_norm_eps"], "use_bias": fields["attention_bias"]}


def _phi(_: GgufModel, __: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"layer_norm_eps": fields["rms_norm_eps"]}


BITNET = Kind(
    "BitNetForCausalLM",
    "relu2",
    _LINEARS
    | _READS
    | {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
)
_LLAMA = Kind("LlamaForCausalLM", permuted=True, written=True)
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_FACTORS = ("embedding_scale", "residual_scale", "logit_scale")
_SWA_BASE = "rope.freq_base_swa"
_GEMMA4 = Kind(
    "Gemma4ForCausalLM",
    "gelu_pytorch_tanh",
    _GEMMA2
    | _QK_NORMS
    | {
        "layer_scalar": "layer_output_scale",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
    },
    settings=_gemma4,
    reads=(*_SOFT_CAPS, _SWA_BASE),
    outer={
        "model.embed_tokens_per_layer": "per_layer_token_embd",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
    },
    varied=True,
)
ARCHITECTURES_OF = {
    "llama": _LLAMA,
    "falcon3": _LLAMA,
    "qwen2": Kind("Qwen2ForCausalLM", written=True),
    "qwen3": Kind(
        "Qwen3ForCausalLM",
        modules=_LINEARS | _READS | _QK_NORMS | _INPUT_NORMS,
        written=True,
    ),
    "qwen35": Kind(
        "Qwen3_5ForCausalLM",
        modules=_LINEARS | _READS | _QK_NORMS | _RECURRENT | PREDICTING,
        hybrid=True,
        sums=True,
        partial=True,
        arrays=_RECURRENT_ARRAYS,
        settings=_hybrid,
    ),
    "qwen35moe": Kind(
        "Qwen3_5MoeForCausalLM",
        modules=_EXPERTS | _SHARED | _READS | _QK_NORMS | _RECURRENT | PREDICTING,
        hybrid=True,
        sums=True,
        partial=True,
        arrays=_RECURRENT_ARRAYS,
        settings=_hybrid_experts,
        experts="moe_intermediate_size",
    ),
    "gemma2": Kind(
        "Gemma2ForCausalLM",
        "gelu_pytorch_tanh",
        _GEMMA2,
        settings=_gemma,
        sums=True,
        reads=_SOFT_CAPS,
        period=2,
    ),
    "gemma3": Kind(
        "Gemma3ForCausalLM",
        "gelu_pytorch_tanh",
        _GEMMA2 | _QK_NORMS | _INPUT_NORMS,
        settings=_gemma,
        sums=True,
        reads=(*_SOFT_CAPS, _SWA_BASE),
        period=6,
    ),
    "gemma4": _GEMMA4,
    "granite": Kind(
        "GraniteForCausalLM",
        permuted=True,
        settings=_granite,
        reads=(*_FACTORS, "attention.scale"),
    ),
    "smollm3": Kind("SmolLM3ForCausalLM", permuted=True),
    "phi3": Kind("Phi3ForCausalLM", modules=_READS | _QKV | _GATE_UP, partial=True),
    "olmo2": Kind(
        "Olmo2ForCausalLM",
        modules=_LINEARS | _QK_NORMS | _ADDS,
        settings=_olmo2,
        reads=(_SWA_BASE,),
        period=4,
    ),
    "glm4": Kind(
        "Glm4ForCausalLM",
        modules={
            **{name: to for name, to in _LINEARS.items() if name.startswith("self_attn.")},
            **_GATE_UP,
            **_READS,
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        partial=True,
        settings=_glm4,
    ),
    "command-r": Kind(
        "CohereForCausalLM",
        modules=_LINEARS | {"input_layernorm": "attn_norm"},
        settings=_cohere,
        reads=("logit_scale",),
        layer_norm=True,
    ),
    "starcoder2": Kind(
        "Starcoder2ForCausalLM",
        "gelu_pytorch_tanh",
        _ATTENTION | _READS | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        settings=_starcoder2,
        layer_norm=True,
        biases=("output_norm",),
    ),
    "phi2": Kind(
        "PhiForCausalLM",
        "gelu_new",
        {
            **{name: to for name, to in _ATTENTION.items() if to != "attn_output"},
            "self_attn.dense": "attn_output",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
            "input_layernorm": "attn_norm",
        },
        partial=True,
        settings=_phi,
        layer_norm=True,
        biases=("output_norm", "output"),
    ),
    "hunyuan-dense": Kind(
        "HunYuanDenseV1ForCausalLM",
        modules=_LINEARS
        | _READS
        | {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    ),
    "minicpm": Kind("MiniCPMForCausalLM", permuted=True, settings=_minicpm, reads=_FACTORS),
    "qwen3moe": Kind(
        "Qwen3MoeForCausalLM",
        modules=_EXPERTS | _READS | _QK_NORMS,
        experts="moe_intermediate_size",
    ),
    "gpt-oss": Kind(
        "GptOssForCausalLM",
        modules=_GPT_OSS,
        settings=_gpt_oss,
        experts="intermediate_size",
        period=2,
    ),
    # 1bitLLM's models; their names there are those of BitNet, but for the small n
    "bitnet": Kind(
        "BitnetForCausalLM",
        modules=_LINEARS
        | _READS
        | {"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"},
    ),
    # relu^2 is in no key of these files
    "bitnet-25": BITNET,
    "bitnet-b1.58": BITNET,
}

#: Kinds of files whose FFNs are of experts, where others of the same name have dense ones.
WITH_EXPERTS = {
    "llama": Kind(
        "MixtralForCausalLM",
        modules=_MIXTRAL | _READS,
        permuted=True,
        experts="intermediate_size",
    ),
    "gemma4": replace(
        _GEMMA4,
        modules={
            **_GEMMA4.modules,
            "router.proj": "ffn_gate_inp",
            "experts.gate_proj": "ffn_gate_exps",
            "experts.up_proj": "ffn_up_exps",
            "experts.gate_up_proj": "ffn_gate_up_exps",
            "experts.down_proj": "ffn_down_exps",
            "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
            "post_feedforward_layernorm_1": "post_ffw_norm_1",
            "post_feedforward_layernorm_2": "post_ffw_norm_2",
        },
        arrays=_ROUTER_ARRAYS,
        settings=_gemma4_experts,
        experts="moe_intermediate_size",
    ),
}
