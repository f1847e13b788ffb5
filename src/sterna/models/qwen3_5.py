"""Qwen3.5 and 3.6, dense: gated DeltaNet in most layers, gated attention in the others.
arXiv 2412.06464 (the recurrence).

    x = x + out(norm(recurrence(silu(conv(q, k, v)), a, b)) silu(z)),   or
    x = x + o(attention(rope(norm(q), norm(k)), v) sigmoid(gate));
    x = x + down(silu(gate) * up)

Each sublayer reads RMSNorm(x). Norms multiply by 1 + their weight, except the recurrence's. A part
of each head is rotated. Its sections tell an image's axes apart; in a text all have the same
position. Checkpoints with a vision tower nest the text's config and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.graph import Graph, RecurrentHeads, Value
from sterna.models import delta_net, mtp, towers
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config import FULL, MAX_HEAD_DIM
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
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import rotated_part
from sterna.models.vision import qwen3_vl
from sterna.models.vision.qwen3_vl import tower as tower
from sterna.weights.sources import Linear

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"rms_norm_eps": 1e-6, "attention_bias": False, "vocab_size": 248320}
    | {"intermediate_size": 12288, "num_attention_heads": 16, "num_key_value_heads": 4}
    | {"head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25}
    | {"full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128}
    | {"linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32}
)
GGUF = {
    "qwen35": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS
        | READS
        | QK_NORMS
        | PROJECTIONS
        | PREDICTING
        | {"linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm"}
        | {"post_attention_layernorm": "post_attention_norm"},
        hybrid=True,
        sums=True,
        partial=True,
        arrays={"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"},
    )
}
PREFIXES = towers.PREFIXES
TOWER = qwen3_vl.TOWER
#: Prefixes of tensors that are not the text model's -> their descriptions.
SKIPPED = towers.SKIPPED | {
    "mtp.": "layers that predict several tokens, of a kind that Sterna does not run"
}
LINEAR = "linear_attention"  # in layer_types: a recurrent layer
MIXERS = "mixer_types"  # a field of ours: layer_types of both kinds
#: A field of ours: names of the layers `out_proj` whose columns repeat the key heads (0 1 2 0 1 2),
#: where all other tensors have the value heads of a key head side by side (0 0 1 1 2 2). Blocks of
#: quantised weights may span several heads, so no loader can reorder such columns.
TILED_OUT_PROJ = "tiled_out_proj"
SECTIONS = [11, 11, 10]  # of the rotations, for time, lines and columns of an image
MAX_TAPS = 16  # native kMaxConvWidth
#: The projections of a recurrent layer: (builder, norm(x), its heads, its name) -> its row.
Projected = Callable[[ModelBuilder, Value, RecurrentHeads, str], Row]


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, its layers' kinds, and the rotated part of a head."""
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
    m: ModelBuilder, ffn: FeedForward | None = None, projected: Projected | None = None
) -> Value:
    """Add the model's layers; return the logits.

    ffn: replaces the dense FFN. projected: replaces the projections of recurrent layers.
    """
    m, c, f = towers.with_axes(m), m.config, m.config.fields
    heads, bias = delta_net.heads_of(f), c.attention_bias
    attention = AttentionOptions(bias, QKNorm(plus_one=True), gated=True)
    x = m.embedding()
    for i, mixer in enumerate(f.config[MIXERS]):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm", plus_one=True)
        if mixer == FULL:
            h = m.attention(h, i, f"{p}.self_attn", attention)
            x = m.output(h, x, f"{p}.self_attn.o_proj", bias=bias)
        else:
            name = f"{p}.linear_attn"
            row = (projected or _projected)(m, h, heads, name)
            x = m.output(_delta_net(m, row, heads, name), x, f"{name}.out_proj")
            if _is_tiled(f, name):  # adapters have the columns in another order
                m.graph.graph.remove_places(f"{name}.out_proj")
        h = m.norm(x, f"{p}.post_attention_layernorm", plus_one=True)
        x = ffn(m, h, x, i, f"{p}.mlp") if ffn else m.feed_forward(h, x, f"{p}.mlp")
    return m.head(x, plus_one=True, hidden_states=mtp.is_there(c, m.weights))


def predictor(m: ModelBuilder, ffn: FeedForward | None = None) -> Graph | None:
    """Return the graph of the MTP layer of the model that `m` has built; None: it has none."""
    if not mtp.is_there(m.config, m.weights):
        return None
    return mtp.build(m, ffn or _dense)


def _dense(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
    return m.feed_forward(h, x, name)


def _projected(m: ModelBuilder, h: Value, heads: RecurrentHeads, name: str) -> Row:
    widths = {"qkv": heads.width, "z": heads.v_width, "b": heads.v_heads, "a": heads.v_heads}
    parts = [Linear(f"{name}.in_proj_{part}", M, h.width) for part, M in widths.items()]
    row, (_, z, b, a) = m.merged_linear(h, f"{name}.in_proj", parts)
    return row, z, b, a


def _delta_net(m: ModelBuilder, row: Row, heads: RecurrentHeads, name: str) -> Value:
    """Add a gated DeltaNet layer, from its projections up to out_proj."""
    f = m.config.fields
    taps = m.taps(f"{name}.conv1d", heads.width, f.count("linear_conv_kernel_dim", most=MAX_TAPS))
    # `GatedOp` transposes [k_heads, n] of heads: 0 0 1 1 2 2 becomes 0 1 2 0 1 2.
    tiling = heads.v_heads // heads.k_heads if _is_tiled(f, name) else None
    decay, eps = delta_net.Decay.of(m.weights, name, heads), m.config.rms_norm_eps
    return delta_net.layer(m, row, heads, name, taps, decay, eps=eps, tiling=tiling)


def _is_tiled(f: Fields, name: str) -> bool:
    """Whether out_proj of a layer has its columns in the order of `TILED_OUT_PROJ`."""
    return f"{name}.out_proj" in f.strings(TILED_OUT_PROJ)
