"""Falcon-H1: attention and Mamba-2 side by side in every layer, with a multiplier for each part.
arXiv 2507.22448.

    h = norm(x);   x = x + s mamba(t h) + o attention(rope(a h));
    x = x + d down(silu(g gate) * up)

The columns of in_proj have multipliers of their own, and so have keys, embeddings and logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sterna.graph import Value
from sterna.graph.ops import ScaleOp
from sterna.models import mamba2
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("FalconH1ForCausalLM",)
#: Multipliers of one number; lists have more.
_FACTORS = (
    "lm_head_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "attention_out_multiplier",
    "attention_in_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)
DEFAULTS: dict[str, Any] = (
    COMMON
    | mamba2.DEFAULTS
    | dict.fromkeys(_FACTORS, 1.0)
    | {"vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8}
    | {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "mamba_d_ssm": 1024}
    | {"mamba_norm_before_gate": True, "mamba_rms_norm": False, "projectors_bias": False}
    | {"attention_bias": False, "mlp_bias": False, "mlp_multipliers": [1.0] * 2}
    | {"ssm_multipliers": [1.0] * 5}
)
GGUF = {
    "falcon-h1": GgufArchitecture(
        ARCHITECTURES[0],
        modules=ATTENTION
        | {"input_layernorm": "attn_norm"}
        | {f"mamba.{module}": name for module, name in mamba2.MODULES.items()}
        | {f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
        arrays={f"mamba.{module}": name for module, name in mamba2.ARRAYS.items()}
        | {"pre_ff_layernorm.weight": "ffn_norm"},
        keys={**mamba2.GGUF_KEYS, "ssm.inner_size": "mamba_d_ssm"},
        unsaid={"mamba_norm_before_gate": False},  # as llama.cpp has it
    )
}
PREFIXES = {"model.final_layernorm.": "model.norm."}


def complete(f: Fields) -> dict[str, Any]:
    """Refuse biases of layers after which a multiplier is applied."""
    for multiplier, bias in (
        ("attention_in_multiplier", "attention_bias"),
        ("ssm_in_multiplier", "mamba_proj_bias"),
    ):
        if f.flag(bias):
            f.supported(multiplier, f.factor(multiplier), 1.0)
    return {"layer_types": None}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    f, space = c.fields, _state_space(c)
    # Scores are products of queries and keys, each of which has the multiplier of their input.
    inputs = f.factor("attention_in_multiplier")
    scale = c.head_dim**-0.5 * f.factor("key_multiplier") * inputs**2
    attention = AttentionOptions(bias=c.attention_bias, scale=scale)
    out_factor = f.factor("attention_out_multiplier") * inputs
    x = m.embedding(f.factor("embedding_multiplier"))
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm")
        x = mamba2.layer(m, h, x, f"{p}.mamba", space, f.factor("ssm_out_multiplier"))
        h = m.attention(h, i, f"{p}.self_attn", attention)
        name = f"{p}.self_attn.o_proj"
        x = m.output(h, x, name, bias=c.attention_bias, factor=out_factor)
        h = m.norm(x, f"{p}.pre_ff_layernorm")
        x = _feed_forward(m, h, x, f"{p}.feed_forward")
    return m.head(x, factor=f.factor("lm_head_multiplier"))


def _state_space(c: TransformerConfig) -> mamba2.StateSpace:
    f = c.fields
    inner = f.config["mamba_d_ssm"]
    inner = f.count("mamba_expand") * c.hidden_size if inner is None else f.count("mamba_d_ssm")
    inputs = f.factor("ssm_in_multiplier")
    return replace(
        mamba2.StateSpace.of(f, inner),
        out_bias=f.flag("projectors_bias"),
        norm=f.flag("mamba_rms_norm"),
        gate_first=not f.flag("mamba_norm_before_gate"),
        multipliers=tuple(inputs * m for m in f.numbers("ssm_multipliers", 5)),
    )


def _feed_forward(m: ModelBuilder, h: Value, x: Value, name: str) -> Value:
    gate, down = m.config.fields.numbers("mlp_multipliers", 2)
    h = m.gate_up(h, name)
    if gate != 1:
        factors = np.ones(h.width, np.float32)
        factors[: m.config.intermediate_size] = gate
        h = m.add(ScaleOp(name=f"{name}.multiplier", x=h, factors=factors))
    h = m.glu(h, f"{name}.act")
    return m.output(h, x, f"{name}.down_proj", bias=m.config.mlp_bias, factor=down)
