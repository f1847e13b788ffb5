"""Llama and models of the same graph: TinyLlama, Falcon3, and ternary Llamas such as Falcon-E.

    x = x + o(attention(rope(q, k), v));   x = x + down(silu(gate) * up)

Each sublayer reads RMSNorm(x). Packed ternary layers quantise their input to int8; float layers do
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sterna.graph import Value
from sterna.models.builder import Attend, FeedForward, ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import (
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    NO_FACTORS,
    AttentionOptions,
    Factors,
    Norms,
)

ARCHITECTURES = ("LlamaForCausalLM",)
DEFAULTS: dict[str, Any] = COMMON | {
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
}
GGUF = dict.fromkeys(
    ("llama", "falcon3"), GgufArchitecture(ARCHITECTURES[0], permuted=True, written=True)
)

EXPERTS_IN = "mixtral"


def build(
    m: ModelBuilder,
    *,
    norms: Norms = LLAMA_NORMS,
    attention: AttentionOptions = LLAMA_ATTENTION,
    factors: Factors = NO_FACTORS,
    fused_gate_up: bool = False,
    ffn: FeedForward | None = None,
    attend: Attend | None = None,
    head_bias: bool = False,
    after_layer: Callable[[ModelBuilder, Value, int], Value] | None = None,
) -> Value:
    """Add the model's layers; return the logits.

    attention: q, k and v have biases if it says so or if config.json's attention_bias does, which
    includes o. fused_gate_up: the checkpoint has gate and up as one matrix.
    ffn: replaces Llama's FFN, its output norm and its factor. attend: replaces
    `ModelBuilder.attention`. head_bias: logits have a bias.
    after_layer: (builder, x, the layer's number) -> x for the next layer.
    """
    x, bias = m.embedding(factors.embedding), m.config.attention_bias
    attention = replace(attention, bias=attention.bias or bias)
    output = partial(m.output, factor=factors.residual, plus_one=norms.plus_one)
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        pre, post = ([name and f"{p}.{name}" for name in of] for of in (norms.pre, norms.post))
        h = _norm(m, x, pre[0], norms)
        if attend is not None:
            h = attend(m, h, i, f"{p}.self_attn")
        else:
            h = m.attention(h, i, f"{p}.self_attn", attention)
        x = output(h, x, f"{p}.self_attn.o_proj", bias=bias, norm_name=post[0])
        h = _norm(m, x, pre[1], norms)
        if ffn is not None:
            x = ffn(m, h, x, i, f"{p}.mlp")
        else:
            h = m.glu(m.gate_up(h, f"{p}.mlp", fused=fused_gate_up), f"{p}.mlp.act")
            x = output(h, x, f"{p}.mlp.down_proj", bias=m.config.mlp_bias, norm_name=post[1])
        x = after_layer(m, x, i) if after_layer is not None else x
    factor, cap = factors.logits, factors.logits_cap
    if norms.layer_norm:
        x = _norm(m, m.select(x), "model.norm", norms, factor)
        return m.logits(x, cap=cap, bias=head_bias)
    return m.head(x, plus_one=norms.plus_one, factor=factor, cap=cap, bias=head_bias)


def _norm(m: ModelBuilder, x: Value, name: str | None, norms: Norms, factor: float = 1.0) -> Value:
    """Normalise x, times the factor of a LayerNorm; x itself if the norm has no name."""
    if name is None:
        return x
    if not norms.layer_norm:
        return m.norm(x, name, plus_one=norms.plus_one)
    has = {"weight": norms.weight, "bias": norms.bias}
    return m.layer_norm(x, name, **has, plus_one=norms.plus_one, factor=factor)
