"""Apertus: Llama's graph with norms of the heads of q and k, and an FFN without a gate, whose
activation xIELU has learned parameters. arXiv 2509.14233, 2411.13010.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + down(xielu(up))
"""

from __future__ import annotations

import math
from typing import Any

from sterna import _native
from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, QK_NORMS, UNGATED, GgufArchitecture
from sterna.models.options import AttentionOptions, Norms, QKNorm

ARCHITECTURES = ("ApertusForCausalLM",)
ACTIVATION = "xielu"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 131072, "intermediate_size": 14336, "hidden_act": ACTIVATION}
    | {"max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 12e6}
    | {"attention_bias": False}
)
#: rope_parameters, where a file has none.
ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GGUF = {
    "apertus": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        ATTENTION
        | UNGATED
        | QK_NORMS
        | {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
    )
}
#: A field of ours: the activation's parameters in each layer, as GGUF files have them.
XIELU = "xielu"
PARAMETERS: dict[str, tuple[int, ...]] = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}


def complete(f: Fields) -> dict[str, Any]:
    """Return the rotations."""
    return {"rope_parameters": f.mapping("rope_parameters") or ROPE}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    norms = Norms(pre=("attention_layernorm", "feedforward_layernorm"))
    attention = AttentionOptions(qk_norm=QKNorm())
    return llama.build(m, norms=norms, attention=attention, ffn=_ffn)


def _ffn(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
    p = _parameters(m, layer, name)
    return m.ungated(h, x, f"{name}.up_proj", f"{name}.down_proj", bias=False, parameters=p)


def _parameters(m: ModelBuilder, layer: int, name: str) -> tuple[float, ...]:
    """Return alpha_p and alpha_n, which are stored as what softplus makes them of, beta and eps."""
    parameters = m.config.fields.mapping(XIELU)
    p, n, beta, eps = (
        float(parameters[key][layer])
        if parameters
        else float(m.weights.vector(f"{name}.act_fn.{key}", *shape).reshape(()))
        for key, shape in PARAMETERS.items()
    )
    return _softplus(p), beta + _softplus(n), beta, eps


def _softplus(x: float) -> float:
    return _native.log(1 + _native.power(math.e, x))
