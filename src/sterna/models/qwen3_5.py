"""Qwen3.5 and 3.6, dense: gated DeltaNet in most layers, gated attention in the others.
arXiv 2412.06464 (the recurrence).

    x = x + out(norm(recurrence(silu(conv(q, k, v)), a, b)) silu(z)),   or
    x = x + o(attention(rope(norm(q), norm(k)), v) sigmoid(gate));
    x = x + down(silu(gate) * up)

Each half reads RMSNorm(x). Norms multiply by 1 + their weight, except the recurrence's. A part of
each head is rotated. Its sections tell an image's axes apart; in a text all have the same position.
Checkpoints with a vision tower nest the text's config and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.graph import Graph, GraphBuilder, RecurrentHeads, Value
from sterna.models import delta_net, layers, mtp, towers
from sterna.models.config import FULL, MAX_HEAD_DIM, TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.delta_net import Row
from sterna.models.gguf_architecture import (
    LINEARS,
    PREDICTING,
    PROJECTIONS,
    QK_NORMS,
    READS,
    GgufArchitecture,
)
from sterna.models.mtp import FeedForward
from sterna.models.rotations import rotated_part
from sterna.models.vision import qwen3_vl
from sterna.models.vision.qwen3_vl import tower as tower
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **COMMON, "rms_norm_eps": 1e-6, "attention_bias": False, "vocab_size": 248320,
    "intermediate_size": 12288, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
    "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
GGUF = {
    "qwen35": GgufArchitecture(
        ARCHITECTURES[0],
        modules={
            **LINEARS, **READS, **QK_NORMS, **PROJECTIONS, **PREDICTING,
            "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
            "post_attention_layernorm": "post_attention_norm",
        },
        hybrid=True, sums=True, partial=True,
        arrays={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
    )
}  # fmt: skip
PREFIXES = towers.PREFIXES
TOWER = qwen3_vl.TOWER
#: Prefixes of tensors that are not the text model's -> their descriptions.
SKIPPED = {
    **towers.SKIPPED,
    "mtp.": "layers that predict several tokens, of a kind that Sterna does not run",
}
LINEAR = "linear_attention"  # in layer_types: a recurrent layer
MIXERS = "mixer_types"  # a field of ours: layer_types of both kinds
#: A field of ours: names of the layers `out_proj` whose columns repeat the key heads (0 1 2 0 1 2),
#: where all other tensors have the value heads of a key head side by side (0 0 1 1 2 2). Blocks of
#: quantised weights may span several heads, so no loader can reorder such columns.
TILED_OUT_PROJ = "tiled_out_proj"
SECTIONS = [11, 11, 10]  # of the rotations, for time, lines and columns of an image
MAX_CONV_WIDTH = 16  # native kMaxConvWidth
Projected = Callable[
    [GraphBuilder, TransformerConfig, WeightSource, Value, RecurrentHeads, str], Row
]


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields alone, its layers' kinds, and the rotated part of a head."""
    t = towers.text_fields(f)
    t.supported("attn_output_gate", t.config.get("attn_output_gate", True), True)
    head_dim = t.count("head_dim", most=MAX_HEAD_DIM)
    rotary_dim, rope = rotated_part(t, t.mapping("rope_parameters"), head_dim)
    rotations = towers.text_rotations(t, rope, rotary_dim)
    return {
        **t.config,
        "rotary_dim": rotary_dim,
        "rope_parameters": {"rope_theta": t.number("rope_theta"), **rotations},
        "partial_rotary_factor": None,
        "layer_types": None,
        towers.AXES: towers.axes_of(t, rope, SECTIONS, rotary_dim // 2),
        MIXERS: _mixers(t),
    }


def _mixers(t: Fields) -> list[str]:
    """Return the kind of each layer: FULL or LINEAR."""
    listed = t.items("layer_types", t.n_layers, (LINEAR, FULL))
    if listed is None:
        interval = t.count("full_attention_interval")
        listed = [LINEAR if (i + 1) % interval else FULL for i in range(t.n_layers)]
    if FULL not in listed:
        t.fail("layer_types", f"at least one {FULL}", LINEAR)
    return listed


def build(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, ffn: FeedForward | None = None,
    projected: Projected | None = None,
) -> Value:  # fmt: skip
    """Write the model's layers into `g`; returns the logits. ffn: replaces the dense one.

    projected: writes the projections of a recurrent layer, if these are stored in another way.
    """
    c, heads, feed_forward = towers.placed(c), delta_net.heads_of(c.fields), ffn or _dense(c, w)
    x, table = layers.embedding(g, c, w)
    for i, mixer in enumerate(c.fields.config[MIXERS]):
        p = f"model.layers.{i}"
        h = layers.norm(g, c, w, x, f"{p}.input_layernorm", plus_one=True)
        if mixer == FULL:
            name, bias = f"{p}.self_attn", c.attention_bias
            h = layers.attention(
                g, c, w, h, i, name,
                layers.AttentionOptions(
                    bias=bias, qk_norm=layers.HeadNorms(plus_one=True), gated=True
                ),
            )  # fmt: skip
            x = layers.output(g, c, w, h, x, f"{name}.o_proj", bias=bias)
        else:
            row = (projected or _projected)(g, c, w, h, heads, f"{p}.linear_attn")
            h = _delta_net(g, c, w, row, heads, f"{p}.linear_attn")
            x = layers.output(g, c, w, h, x, f"{p}.linear_attn.out_proj")
            if _is_tiled(c, f"{p}.linear_attn"):  # adapters have the columns in another order
                g.without_adapters(f"{p}.linear_attn.out_proj")
        h = layers.norm(g, c, w, x, f"{p}.post_attention_layernorm", plus_one=True)
        x = feed_forward(g, h, x, f"{p}.mlp")
    predicts = mtp.is_there(c, w)
    return layers.head(g, c, w, x, table, plus_one=True, hidden_states=predicts)


def _dense(c: TransformerConfig, w: WeightSource) -> FeedForward:
    """Make an FFN without experts."""

    def feed_forward(g: GraphBuilder, h: Value, x: Value, name: str) -> Value:
        h = g.glu(layers.gate_up(g, c, w, h, name), ACTIVATION, f"{name}.act")
        return layers.output(g, c, w, h, x, f"{name}.down_proj")

    return feed_forward


def predictor(
    g: Graph, c: TransformerConfig, w: WeightSource, ffn: FeedForward | None = None
) -> Graph | None:
    """Build the MTP layer of the model with graph `g`; None if the weights have none."""
    if not mtp.is_there(c, w):
        return None
    return mtp.build(g, c, w, ffn or _dense(c, w))


def _projected(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, heads: RecurrentHeads,
    name: str,
) -> Row:  # fmt: skip
    parts = [
        Linear(f"{name}.in_proj_{part}", M, c.hidden_size)
        for part, M in (
            ("qkv", heads.width), ("z", heads.v_width), ("b", heads.v_heads), ("a", heads.v_heads)
        )
    ]  # fmt: skip
    row, (_, z, b, a) = layers.linear_parts(g, c, w, h, f"{name}.in_proj", parts)
    return row, z, b, a


def _delta_net(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, row: Row, heads: RecurrentHeads,
    name: str,
) -> Value:  # fmt: skip
    """Write a gated DeltaNet layer, from its projections up to out_proj."""
    width = c.fields.count("linear_conv_kernel_dim", most=MAX_CONV_WIDTH)
    taps = w.vector(f"{name}.conv1d.weight", heads.width, 1, width).reshape(heads.width, width)
    # `Graph.gated` transposes [k_heads, n] of heads: 0 0 1 1 2 2 becomes 0 1 2 0 1 2.
    tiling = heads.v_heads // heads.k_heads if _is_tiled(c, name) else None
    decay = delta_net.Decay.of(w, name, heads)
    return delta_net.layer(g, w, row, heads, name, taps, decay, eps=c.rms_norm_eps, tiling=tiling)


def _is_tiled(c: TransformerConfig, name: str) -> bool:
    """Whether out_proj of a layer has its columns in the order of `TILED_OUT_PROJ`."""
    return f"{name}.out_proj" in c.fields.strings(TILED_OUT_PROJ)
