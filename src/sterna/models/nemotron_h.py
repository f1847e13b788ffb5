"""Nemotron-H and Nemotron 3: a layer is one of Mamba-2, attention without rotations, an FFN or
experts. arXiv 2504.03624, 2512.20848.

    x = x + mixer(norm(x));   FFN and experts: down(relu(up)^2), with one expert that all use

Experts may read and write a narrower row, `moe_latent_size`. The steps of state spaces have the
bounds of `time_step_limit`: `time_step_min` is for training, although transformers keeps the steps
of prompts, but not those of tokens that it makes, above it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import mamba2, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL
from sterna.models.config_defaults import COMMON, without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import DEEPSEEK_KEYS, GgufArchitecture
from sterna.models.qwen3_5 import LINEAR, MIXERS

ARCHITECTURES = ("NemotronHForCausalLM",)
ACTIVATION = "relu2"
DEFAULTS: dict[str, Any] = (
    without(COMMON, "rope_theta", "num_hidden_layers")
    | mamba2.DEFAULTS
    | {"vocab_size": 131072, "intermediate_size": 21504, "num_key_value_heads": 8, "head_dim": 128}
    | {"hidden_act": ACTIVATION, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    | {"attention_bias": False, "mlp_bias": False, "sliding_window": None, "mamba_n_groups": 8}
    | {"mamba_d_state": 128, "mamba_d_head": 64, "mamba_hidden_act": "silu", "use_bias": False}
    | {"num_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 7688}
    | {"moe_shared_expert_intermediate_size": 7688, "moe_latent_size": None}
    | {"num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1}
    | {"norm_topk_prob": True}
)
ALIASES = (
    moe.ALIASES
    | {"mlp_hidden_act": "hidden_act", "layer_norm_epsilon": "rms_norm_eps"}
    | {"mamba_num_heads": "mamba_n_heads", "mamba_head_dim": "mamba_d_head"}
    | {"n_groups": "mamba_n_groups", "ssm_state_size": "mamba_d_state"}
    | {"conv_kernel": "mamba_d_conv", "expand": "mamba_expand"}
    | {"chunk_size": "mamba_chunk_size", "use_conv_bias": "mamba_conv_bias"}
    | {"attention_head_dim": "head_dim"}
)
PREFIXES = {
    **dict.fromkeys(("backbone.embeddings.", "model.embeddings."), "model.embed_tokens."),
    **dict.fromkeys(("backbone.norm_f.", "model.norm_f."), "model.norm."),
    "backbone.": "model.",
}
SKIPPED = {"mtp.": "layers that predict several tokens, of a kind that Sterna does not run"}
MLP, MOE = "mlp", "moe"
_PATTERN = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}
_KINDS = {LINEAR: LINEAR, "mamba": LINEAR, FULL: FULL, "attention": FULL, MLP: MLP, MOE: MOE}
_MOE_NAMES = replace(moe.DEEPSEEK_NAMES, gate="", stacked=("experts.up_proj", "experts.down_proj"))
_GGUF = GgufArchitecture(
    ARCHITECTURES[0],
    ACTIVATION,
    {"norm": "attn_norm"}
    | {f"mixer.{m}": name for m, name in mamba2.MODULES.items()}
    | {"mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v"}
    | {"mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up"}
    | {"mixer.down_proj": "ffn_down"},
    arrays={f"mixer.{module}": name for module, name in mamba2.ARRAYS.items()},
    keys=mamba2.GGUF_KEYS,
    permuted=True,
    rotates=False,
    varied=True,
    predicts=True,
)
GGUF = {
    "nemotron_h": _GGUF,
    "nemotron_h_moe": replace(
        _GGUF,
        modules=_GGUF.modules
        | {"mixer.gate": "ffn_gate_inp", "mixer.experts.up_proj": "ffn_up_exps"}
        | {"mixer.experts.down_proj": "ffn_down_exps"}
        | {"mixer.shared_experts.up_proj": "ffn_up_shexp"}
        | {"mixer.shared_experts.down_proj": "ffn_down_shexp"}
        | {"mixer.fc1_latent_proj": "ffn_latent_down"}
        | {"mixer.fc2_latent_proj": "ffn_latent_up"},
        arrays={**_GGUF.arrays, "mixer.gate.e_score_correction_bias": "exp_probs_b.bias"},
        experts="moe_intermediate_size",
        reads=DEEPSEEK_KEYS,
    ),
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the kind of each layer; no layer rotates, or has a window."""
    f.supported("mamba_hidden_act", f.config["mamba_hidden_act"], "silu")
    kinds = _kinds(f)
    return {
        "num_hidden_layers": len(kinds),
        "no_rope_layers": [0] * len(kinds),
        "layer_types": None,
        "sliding_window": None,
        MIXERS: kinds,
        "mamba_proj_bias": f.flag("use_bias"),
    }


def _kinds(f: Fields) -> list[str]:
    """Return the kind of each layer, from a list or from older files' letters."""
    listed = "layer_types" if f.config.get("layer_types") else "layers_block_type"
    pattern = f.config.get("hybrid_override_pattern")
    types = list(pattern) if isinstance(pattern, str) else f.config.get(listed)
    types = [LINEAR, MOE, FULL, MLP] if types is None else types
    known = _PATTERN if isinstance(pattern, str) else _KINDS
    field = "hybrid_override_pattern" if isinstance(pattern, str) else listed
    count = f.config.get("num_hidden_layers")
    length = len(types) if count is None else f.n_layers
    checked = f.having({field: types}).items(field, length, tuple(known))
    kinds = [known[kind] for kind in checked or ()]
    if FULL not in kinds:
        f.fail(field, f"at least one {FULL}", LINEAR)
    return kinds


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    kinds = m.config.fields.config[MIXERS]
    space = mamba2.StateSpace.of(m.config.fields) if LINEAR in kinds else None
    x = m.embedding()
    for i, kind in enumerate(kinds):
        name = f"model.layers.{i}.mixer"
        h = m.norm(x, f"model.layers.{i}.norm")
        if kind == FULL:
            h = m.attention(h, i, name)
            x = m.output(h, x, f"{name}.o_proj")
        elif kind == MLP:
            x = _ungated(m, h, x, name)
        elif kind == MOE:
            x = _experts(m, h, x, name)
        elif space:
            x = mamba2.layer(m, h, x, name, space)
    return m.head(x)


def _ungated(m: ModelBuilder, h: Value, x: Value, name: str) -> Value:
    return m.ungated(h, x, f"{name}.up_proj", f"{name}.down_proj", bias=m.config.mlp_bias)


def _experts(m: ModelBuilder, h: Value, x: Value, name: str) -> Value:
    """x + the result of the experts of h, and of the one that all tokens use."""
    c = m.config
    experts = moe.ExpertFields.of_deepseek(c.fields)
    route = moe.routed(m, h, name, experts, _MOE_NAMES)[0]
    width = c.fields.count("moe_shared_expert_intermediate_size")
    x = _ungated(m.with_config(intermediate_size=width), h, x, f"{name}.shared_experts")
    if c.fields.config["moe_latent_size"] is None:
        return moe.combined(m, h, x, route, name, experts, names=_MOE_NAMES)
    width = c.fields.count("moe_latent_size")
    h = m.linear(h, f"{name}.fc1_latent_proj", width, bias=c.mlp_bias)
    h = moe.combined(
        m.with_config(hidden_size=width), h, None, route, name, experts, names=_MOE_NAMES
    )
    return m.output(h, x, f"{name}.fc2_latent_proj", bias=c.mlp_bias)
