"""The architectures of GGUF files: their class in config.json and the names of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sterna.gguf.architecture_fields import (
    cohere_fields,
    gemma4_experts_fields,
    gemma4_fields,
    gemma_fields,
    glm4_fields,
    gpt_neox_fields,
    gpt_oss_fields,
    granite_fields,
    hybrid_experts_fields,
    hybrid_fields,
    minicpm_fields,
    olmo2_fields,
    phi_fields,
    starcoder2_fields,
)
from sterna.gguf.file import GgufModel

__all__ = [
    "ARCHITECTURES_OF",
    "BITNET",
    "NORM_IN",
    "PREDICTING",
    "PROJECTIONS",
    "WITH_EXPERTS",
    "GgufArchitecture",
]

_LINEARS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
#: Suffix of input norms of single linear layers, in BitNet's embedding models.
NORM_IN = "_norm_in"
_INPUT_NORMS = {f"{module}.rms_norm": f"{to}{NORM_IN}" for module, to in _LINEARS.items()}
_ATTENTION = {name: to for name, to in _LINEARS.items() if name.startswith("self_attn.")}
_QKV = {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output"}
_GATE_UP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_READS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
#: Norms of the halves' results, in Gemma and OLMo 2.
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
#: The modules that an MTP layer has in addition to a layer's.
PREDICTING = {
    "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm", "norm": "nextn.shared_head_norm",
}  # fmt: skip
#: Arrays of layers, whose names have no suffix in common with others'.
_RECURRENT_ARRAYS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_ROUTER_ARRAYS = {
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
}  # fmt: skip
#: FFNs of experts, which replace a dense one; a tensor holds all experts.
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
class GgufArchitecture:
    """An architecture of GGUF files, and how it differs from the Hugging Face checkpoint.

    architecture, activation: the class and `hidden_act` in config.json.
    modules: the modules of a layer, by their names in the checkpoint -> in the file.
    permuted: whether rows of q and k are in the order of interleaved rotations.
    hybrid: whether some layers are recurrent.
    partial: whether only a part of a head may be rotated.
    settings: makes further fields of config.json (`architecture_fields`).
    reads: metadata keys that change the arithmetic and that `settings` reads; any other such key
    must have its neutral value (hf_config.py).
    written: whether Sterna writes such files.
    experts: the field of config.json for the width of an expert; empty: no experts.
    outer: further modules outside the layers.
    varied: whether layers may differ in KV heads and in the width of FFNs.
    arrays: tensors of a layer whose names have no suffix `.weight`.
    period: of layers with a window, every so many-th has none, unless the file has a pattern.
    sums: whether norms are stored as 1 + w, where the checkpoint stores w.
    layer_norm: whether norms are LayerNorms.
    by_head: whether the checkpoint has q, k and v of each head together, and files have not.
    biases: tensors outside the layers that have a bias.
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


BITNET = GgufArchitecture(
    "BitNetForCausalLM",
    "relu2",
    _LINEARS
    | _READS
    | {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
)
_LLAMA = GgufArchitecture("LlamaForCausalLM", permuted=True, written=True)
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_FACTORS = ("embedding_scale", "residual_scale", "logit_scale")
_SWA_BASE = "rope.freq_base_swa"
_GEMMA4 = GgufArchitecture(
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
    settings=gemma4_fields,
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
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", written=True),
    "qwen3": GgufArchitecture(
        "Qwen3ForCausalLM",
        modules=_LINEARS | _READS | _QK_NORMS | _INPUT_NORMS,
        written=True,
    ),
    "qwen35": GgufArchitecture(
        "Qwen3_5ForCausalLM",
        modules=_LINEARS | _READS | _QK_NORMS | _RECURRENT | PREDICTING,
        hybrid=True,
        sums=True,
        partial=True,
        arrays=_RECURRENT_ARRAYS,
        settings=hybrid_fields,
    ),
    "qwen35moe": GgufArchitecture(
        "Qwen3_5MoeForCausalLM",
        modules=_EXPERTS | _SHARED | _READS | _QK_NORMS | _RECURRENT | PREDICTING,
        hybrid=True,
        sums=True,
        partial=True,
        arrays=_RECURRENT_ARRAYS,
        settings=hybrid_experts_fields,
        experts="moe_intermediate_size",
    ),
    "gemma2": GgufArchitecture(
        "Gemma2ForCausalLM",
        "gelu_pytorch_tanh",
        _GEMMA2,
        settings=gemma_fields,
        sums=True,
        reads=_SOFT_CAPS,
        period=2,
    ),
    "gemma3": GgufArchitecture(
        "Gemma3ForCausalLM",
        "gelu_pytorch_tanh",
        _GEMMA2 | _QK_NORMS | _INPUT_NORMS,
        settings=gemma_fields,
        sums=True,
        reads=(*_SOFT_CAPS, _SWA_BASE),
        period=6,
    ),
    "gemma4": _GEMMA4,
    "granite": GgufArchitecture(
        "GraniteForCausalLM",
        permuted=True,
        settings=granite_fields,
        reads=(*_FACTORS, "attention.scale"),
    ),
    "smollm3": GgufArchitecture("SmolLM3ForCausalLM", permuted=True),
    "phi3": GgufArchitecture("Phi3ForCausalLM", modules=_READS | _QKV | _GATE_UP, partial=True),
    "olmo2": GgufArchitecture(
        "Olmo2ForCausalLM",
        modules=_LINEARS | _QK_NORMS | _ADDS,
        settings=olmo2_fields,
        reads=(_SWA_BASE,),
        period=4,
    ),
    "glm4": GgufArchitecture(
        "Glm4ForCausalLM",
        modules={
            **{name: to for name, to in _LINEARS.items() if name.startswith("self_attn.")},
            **_GATE_UP,
            **_READS,
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        partial=True,
        settings=glm4_fields,
    ),
    "command-r": GgufArchitecture(
        "CohereForCausalLM",
        modules=_LINEARS | {"input_layernorm": "attn_norm"},
        settings=cohere_fields,
        reads=("logit_scale",),
        layer_norm=True,
    ),
    "starcoder2": GgufArchitecture(
        "Starcoder2ForCausalLM",
        "gelu_pytorch_tanh",
        _ATTENTION | _READS | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        settings=starcoder2_fields,
        layer_norm=True,
        biases=("output_norm",),
    ),
    "phi2": GgufArchitecture(
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
        settings=phi_fields,
        layer_norm=True,
        biases=("output_norm", "output"),
    ),
    "gptneox": GgufArchitecture(
        "GPTNeoXForCausalLM",
        "gelu",
        {
            **_READS,
            "attention.query_key_value": "attn_qkv",
            "attention.dense": "attn_output",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        partial=True,
        settings=gpt_neox_fields,
        reads=("use_parallel_residual",),
        layer_norm=True,
        by_head=True,
        biases=("output_norm",),
    ),
    "hunyuan-dense": GgufArchitecture(
        "HunYuanDenseV1ForCausalLM",
        modules=_LINEARS
        | _READS
        | {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    ),
    "minicpm": GgufArchitecture(
        "MiniCPMForCausalLM", permuted=True, settings=minicpm_fields, reads=_FACTORS
    ),
    "qwen3moe": GgufArchitecture(
        "Qwen3MoeForCausalLM",
        modules=_EXPERTS | _READS | _QK_NORMS,
        experts="moe_intermediate_size",
    ),
    "gpt-oss": GgufArchitecture(
        "GptOssForCausalLM",
        modules=_GPT_OSS,
        settings=gpt_oss_fields,
        experts="intermediate_size",
        period=2,
    ),
    # 1bitLLM's models; they have BitNet's names, except for the small n
    "bitnet": GgufArchitecture(
        "BitnetForCausalLM",
        modules=_LINEARS
        | _READS
        | {"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"},
    ),
    # relu^2 is in no key of these files
    "bitnet-25": BITNET,
    "bitnet-b1.58": BITNET,
}

#: Architectures of files with experts, where files of the same name may have dense FFNs.
WITH_EXPERTS = {
    "llama": GgufArchitecture(
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
        settings=gemma4_experts_fields,
        experts="moe_intermediate_size",
    ),
}
