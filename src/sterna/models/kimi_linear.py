"""Kimi-Linear: Kimi delta attention in most layers, latent attention without rotations in the
others, and DeepSeek V3's experts. arXiv 2510.26692.

    x = x + o(norm(recurrence(silu(conv(q, k, v)), f_b(f_a), b)) sigmoid(g_b(g_a))),   or
    x = x + o(latent attention);   x = x + experts, or down(silu(gate) * up) in the first layers

Each sublayer reads RMSNorm(x). The recurrence is gated DeltaNet's, but each row of a state decays
by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sterna import _native
from sterna.graph import RecurrentHeads, Value
from sterna.models import delta_net, glm4_moe_lite, latent_attention, llama, mixtral, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, MAX_HEAD_DIM
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import (
    DEEPSEEK_KEYS,
    FFN,
    LATENT,
    LINEARS,
    READS,
    GgufArchitecture,
)
from sterna.models.qwen3_5 import LINEAR, MAX_TAPS, MIXERS
from sterna.weights.sources import Linear

ARCHITECTURES = ("KimiLinearForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(glm4_moe_lite.DEFAULTS, "rope_interleave", "rope_theta")
    | {"vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216}
    | {"num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32}
    | {"max_position_embeddings": 1048576, "q_lora_rank": None, "qk_nope_head_dim": 128}
    | {"v_head_dim": 128, "num_experts": 256, "routed_scaling_factor": 2.446, "head_dim": 64}
    | {"num_experts_per_tok": 8, "moe_intermediate_size": 1024, "linear_head_dim": 128}
    | {"linear_num_heads": 32, "linear_conv_kernel_dim": 4}
)
ALIASES = {
    "model_max_length": "max_position_embeddings",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "moe_renormalize": "norm_topk_prob",
}
MODULE, _PROJECTIONS = mixtral.MODULE, ("gate_proj", "up_proj", "down_proj")
NAMES = replace(
    mixtral.NAMES, shared="shared_experts", shared_gate="", bias="gate.e_score_correction_bias"
)
GGUF = {
    "kimi-linear": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS
        | LATENT
        | READS
        | mixtral.GGUF_WITH_EXPERTS["llama"].modules
        | {f"{MODULE}.shared_experts.{p}": f"{FFN[f'mlp.{p}']}_shexp" for p in _PROJECTIONS}
        | {f"self_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"}
        | {f"self_attn.{part}_proj": f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")}
        | {"self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm"},
        arrays={
            "self_attn.A_log": "ssm_a",
            "self_attn.dt_bias": "ssm_dt.bias",
            f"{MODULE}.gate.e_score_correction_bias": "exp_probs_b.bias",
        },
        latent=True,
        varied=True,
        experts="moe_intermediate_size",
        reads=DEEPSEEK_KEYS,
    )
}
#: Fields of published files, within linear_attn_config -> as transformers saves them.
_OF_LINEAR = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the kinds of layers, and the fields of DeepSeek V3; nothing is rotated."""
    linear = f.mapping("linear_attn_config")
    sizes = {field: linear[name] for name, field in _OF_LINEAR.items() if name in linear}
    f.supported("mla_use_nope", f.config.get("mla_use_nope", True), True)
    kinds = f.items("layer_types", f.n_layers, (LINEAR, FULL))
    if kinds is None and "full_attn_layers" in linear:
        kinds = [FULL if i + 1 in linear["full_attn_layers"] else LINEAR for i in range(f.n_layers)]
    kinds = kinds or [FULL if i and i % 4 == 0 else LINEAR for i in range(f.n_layers)]
    if FULL not in kinds:
        f.fail("layer_types", f"at least one {FULL}", LINEAR)
    said = f.having({"rope_interleave": False, **f.config})
    return {
        **glm4_moe_lite.complete(said),
        **sizes,
        "layer_types": None,
        MIXERS: kinds,
        "no_rope_layers": [0] * f.n_layers,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    count, dim = f.count("linear_num_heads"), f.count("linear_head_dim", most=MAX_HEAD_DIM)
    heads = RecurrentHeads(count, count, dim, dim)
    experts = moe.ExpertFields.of_deepseek(f)
    expert_ffn = moe.ffn(replace(experts, dense=frozenset()), names=NAMES, module=MODULE)

    def attend(m: ModelBuilder, h: Value, layer: int, name: str) -> Value:
        if f.config[MIXERS][layer] == FULL:
            return latent_attention.attention(m, h, layer, name)
        return _delta_attention(m, h, heads, name)

    def ffn(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
        if layer not in experts.dense:
            return expert_ffn(m, h, x, layer, name)
        if not m.weights.has(f"{name}.down_proj"):  # transformers saves it by the experts' name
            name = f"model.layers.{layer}.{MODULE}"
        return m.feed_forward(h, x, name)

    return llama.build(m, attend=attend, ffn=ffn)


def _delta_attention(m: ModelBuilder, h: Value, heads: RecurrentHeads, name: str) -> Value:
    """Write Kimi delta attention, up to the output projection."""
    n, dim = heads.v_width, heads.v_dim
    widths = {"q": n, "k": n, "v": n, "b": heads.v_heads, "f_a": dim, "g_a": dim}
    parts = [Linear(f"{name}.{part}_proj", M, h.width) for part, M in widths.items()]
    row, (q, k, v, b, f_a, g_a) = m.merged_linear(h, f"{name}.qkvbfg_proj", parts)

    def second(first: int, part: str) -> Value:
        x = m.graph.columns(row, dim, f"{name}.{part[0]}_a_proj", first)
        return m.linear(x, f"{name}.{part}_proj", n)

    pieces = [(row, at, n) for at in (q, k, v)]
    pieces += [(second(f_a, "f_b"), 0, n), (row, b, heads.v_heads)]
    x = delta_net.side_by_side(m, pieces, f"{name}.qkvfb_proj")
    width = m.config.fields.count("linear_conv_kernel_dim", most=MAX_TAPS)
    a_log = m.weights.vector(f"{name}.A_log", 1, 1, heads.v_heads, 1).reshape(-1)
    rate = np.repeat(-_native.exponentials(a_log), dim)
    decay = delta_net.Decay(rate, m.weights.vector(f"{name}.dt_bias", n))
    return delta_net.layer(
        m,
        (x, 0, 4 * n, 3 * n),
        heads,
        name,
        delta_net.split_taps(m.weights, name, heads, width),
        decay,
        norm="o_norm",
        eps=m.config.rms_norm_eps,
        gates=second(g_a, "g_b"),
        activation="sigmoid",
    )
