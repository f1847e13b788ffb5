"""Llama and models of the same graph: TinyLlama, Falcon3, and ternary Llamas such as Falcon-E.

    x = x + o(attention(rope(q, k), v));   x = x + down(silu(gate) * up)

Each half reads RMSNorm(x). Packed ternary layers quantise their input to int8; float layers do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("LlamaForCausalLM",)
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **COMMON,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
}
GGUF = dict.fromkeys(
    ("llama", "falcon3"), GgufArchitecture(ARCHITECTURES[0], permuted=True, written=True)
)
#: The second half of a layer: (norm(x), x, the layer's number, the FFN's name) -> the next x.
FeedForward = Callable[[Value, Value, int, str], Value]
#: Attention up to the projection back: (norm(x), the layer's number, attention's name) -> heads.
Attend = Callable[[Value, int, str], Value]


def build(
    g: GraphBuilder,
    c: TransformerConfig,
    w: WeightSource,
    *,
    norms: layers.Norms = layers.LLAMA_NORMS,
    attention: layers.AttentionOptions = layers.LLAMA_ATTENTION,
    factors: layers.Factors = layers.NO_FACTORS,
    fused_gate_up: bool = False,
    ffn: FeedForward | None = None,
    attend: Attend | None = None,
    head_bias: bool = False,
    behind: Callable[[Value, int], Value] | None = None,
) -> Value:
    """Write the model's layers into `g`; returns the logits.

    attention: its `bias` holds even if config.json's attention_bias, which includes o, is false.
    fused_gate_up: the checkpoint has gate and up as one matrix. ffn: replaces `feed_forward`, with
    the norm and the factor of what it adds. attend: replaces `layers.attention`.
    head_bias: the head has a bias. behind: writes what follows a layer of this
    number.
    """
    x, table = layers.embedding(g, c, w, factors.embedding)
    one = norms.plus_one
    attention = replace(attention, bias=attention.bias or c.attention_bias)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        reads = [name and f"{p}.{name}" for name in norms.reads]
        adds = [name and f"{p}.{name}" for name in norms.adds]
        h = _read(g, c, w, x, reads[0], norms)
        if attend is not None:
            h = attend(h, i, f"{p}.self_attn")
        else:
            h = layers.attention(g, c, w, h, i, f"{p}.self_attn", attention)
        x = layers.output(
            g, c, w, h, x, f"{p}.self_attn.o_proj", bias=c.attention_bias,
            factor=factors.residual, norm_name=adds[0], plus_one=one,
        )  # fmt: skip
        h = _read(g, c, w, x, reads[1], norms)
        if ffn is not None:
            x = ffn(h, x, i, f"{p}.mlp")
        else:
            x = feed_forward(
                g, c, w, h, x, f"{p}.mlp", fused=fused_gate_up, factor=factors.residual,
                norm_name=adds[1], plus_one=one,
            )  # fmt: skip
        x = behind(x, i) if behind is not None else x
    cap = factors.logits_cap
    if norms.layer:
        h = _read(g, c, w, g.select(x), "model.norm", norms, factors.logits)
        return layers.logits(g, c, w, h, table, cap=cap, bias=head_bias)
    return layers.head(
        g, c, w, x, table, plus_one=one, factor=factors.logits, cap=cap, bias=head_bias
    )


def _read(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, name: str | None,
    norms: layers.Norms, factor: float = 1.0,
) -> Value:  # fmt: skip
    """Write the norm of a half's input, if it has one, times the factor of a LayerNorm."""
    if name is None:
        return x
    if not norms.layer:
        return layers.norm(g, c, w, x, name, plus_one=norms.plus_one)
    return layers.layer_norm(
        g, c, w, x, name, weight=norms.weight, bias=norms.bias, plus_one=norms.plus_one,
        factor=factor,
    )  # fmt: skip


def feed_forward(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, x: Value, name: str,
    *, fused: bool = False, factor: float = 1.0, norm_name: str | None = None,
    plus_one: bool = False,
) -> Value:  # fmt: skip
    """x + factor * down(act(gate) * up) of h; fused: `stored_fused` of `layers.gate_up`; other
    arguments as in `layers.output`."""
    h = layers.gate_up(g, c, w, h, name, stored_fused=fused)
    h = g.glu(h, c.activation, f"{name}.act")
    return layers.output(
        g, c, w, h, x, f"{name}.down_proj", bias=c.mlp_bias, factor=factor, norm_name=norm_name,
        plus_one=plus_one,
    )  # fmt: skip
