"""How a GGUF file stores an architecture: plain data, which `sterna.gguf` reads.

A model's module has one `GgufArchitecture` for each name that files have for it
(`general.architecture`), made of the tables here, which map the modules of a layer: their names in
the checkpoint -> in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["GgufArchitecture"]

#: Linear layers of attention, in Llama and similar architectures.
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
#: An FFN with a gate.
FFN = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
#: All linear layers of Llama.
LINEARS = {**ATTENTION, **FFN}
#: Linear layers of an FFN without a gate.
UNGATED = {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
#: Gate and up as one matrix.
GATE_UP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
#: Norms of the inputs of a layer's sublayers.
READS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
#: Norms of the outputs of the sublayers, in Gemma and OLMo 2.
ADDS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
#: Suffix of input norms of single linear layers, in BitNet's embedding models.
NORM_IN = "_norm_in"
INPUT_NORMS = {f"{module}.rms_norm": f"{to}{NORM_IN}" for module, to in LINEARS.items()}
#: Attention, and the FFN of experts that replaces a dense one; a tensor holds all experts.
EXPERTS = {
    **ATTENTION,
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
}
#: Multi-head latent attention; files have kv_b as one matrix, or its halves for each head.
LATENT = {
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "self_attn.o_proj": "attn_output",
}
#: An FFN that all tokens use in addition to their experts, and its gate.
GATED_SHARED = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
#: Llama's attention, with dense FFNs in some layers, and experts with a shared one in others.
DEEPSEEK_FFN = {
    **LINEARS,
    **EXPERTS,
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
#: Keys of a router of DeepSeek V3's kind.
DEEPSEEK_KEYS = (
    "expert_weights_scale",
    "expert_weights_norm",
    "expert_group_count",
    "expert_gating_func",
)
#: The projections of a recurrent layer.
PROJECTIONS = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out",
}
#: The modules that an MTP layer has in addition to a layer's.
PREDICTING = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}
#: Tables of an encoder in addition to that of tokens, and the head of a cross-encoder.
TYPES = {
    "model.embeddings.token_type_embeddings": "token_types",
    "model.embeddings.LayerNorm": "token_embd_norm",
}
SCORES = {"classifier": "cls.output"}
#: Outside the layers, what of these has a bias.
ENCODER_BIASES = ("token_embd_norm", "cls", "cls.output")
#: Keys that several architectures have: caps of scores and logits, factors, a base of rotations.
SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
FACTORS = ("embedding_scale", "residual_scale", "logit_scale")
SWA_BASE = "rope.freq_base_swa"
#: Rotated features in layers with a window, and a clamp of experts' gates, for each layer.
SWA_ROTATED, EXPERT_CLAMP = "rope.dimension_count_swa", "swiglu_clamp_exp"


@dataclass(frozen=True)
class GgufArchitecture:
    """An architecture of GGUF files, and how it differs from the Hugging Face checkpoint.

    architecture, activation: the class and `hidden_act` in config.json.
    modules: the modules of a layer, by their names in the checkpoint -> in the file.
    permuted: whether rows of q and k are in the order of interleaved rotations.
    hybrid: whether some layers are recurrent. tiles: whether their value heads are in ggml's order.
    partial: whether only a part of a head may be rotated. rotates: whether any is; if not, files
    may say any number of features.
    keys: metadata keys that every file has -> the fields of config.json that they are.
    renamed: fields by their usual names -> by the class's own.
    reads: further keys that change the arithmetic and that a function of
    `gguf/architecture_fields.py` reads; any other such key must have its neutral value.
    written: whether Sterna writes such files.
    experts: the field of config.json for the width of an expert; empty: no experts.
    outer: further modules outside the layers.
    varied: whether layers may differ in KV heads and in the width of FFNs.
    arrays: tensors of a layer whose names have no suffix `.weight`.
    period: every period-th layer has no window, unless the file has a pattern.
    sums: whether norms are stored as 1 + w, where the checkpoint stores w.
    layer_norm: whether norms are LayerNorms; None: where the file has their epsilon.
    by_head: whether the checkpoint has q, k and v of each head together, and files have not.
    biases: tensors outside the layers that have a bias.
    latent: whether attention is latent: keys and values of a head differ in width.
    predicts: whether the last blocks may predict several tokens, which are skipped.
    unsaid: fields of config.json that no key says, and that are not the class's defaults.
    qkv_bias: the field that says whether q, k and v have biases, if that of o does not say so.
    encoder: whether a position attends to the whole text.
    attends: whether any layer attends; if not, files have no attention heads.
    """

    architecture: str
    activation: str = "silu"
    modules: dict[str, str] = field(default_factory=lambda: LINEARS | READS)
    permuted: bool = False
    hybrid: bool = False
    tiles: bool = True
    partial: bool = False
    rotates: bool = True
    keys: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    written: bool = False
    experts: str = ""
    outer: dict[str, str] = field(default_factory=dict)
    varied: bool = False
    arrays: dict[str, str] = field(default_factory=dict)
    period: int = 0
    sums: bool = False
    layer_norm: bool | None = False
    by_head: bool = False
    biases: tuple[str, ...] = ()
    latent: bool = False
    predicts: bool = False
    unsaid: dict[str, Any] = field(default_factory=dict)
    qkv_bias: str = ""
    encoder: bool = False
    attends: bool = True
