"""RecurrentGemma: the RG-LRU of Griffin in two of three layers, attention within a window in the
others. arXiv 2404.07839, 2402.19427.

    x = x + linear_out(gelu(linear_y(h)) rg_lru(conv(linear_x(h)))),   or
    x = x + o(attention(rope(q, k), v));   h = norm(x);   x = x + down(gelu(gate) up)

Norms multiply by 1 + their weight. The gates of the RG-LRU are linear layers with a matrix for each
block of channels. Half of each head is rotated. A token's state and window are all that is kept of
a text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna import formats
from sterna.formats import Experts
from sterna.graph import Piece, Value
from sterna.graph.ops import ConvOp, RgLruOp
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, MAX_HEAD_DIM, SLIDING
from sterna.models.config_fields import Fields
from sterna.models.mamba import CONTEXT
from sterna.models.options import AttentionOptions
from sterna.models.qwen3_5 import LINEAR, MAX_TAPS, MIXERS
from sterna.models.rope import rotated_part
from sterna.weights.sources import Linear, Stacking

ARCHITECTURES = ("RecurrentGemmaForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 256000, "hidden_size": 2560, "intermediate_size": 7680}
    | {"num_hidden_layers": 26, "num_attention_heads": 10, "num_key_value_heads": None}
    | {"hidden_act": ACTIVATION, "sliding_window": 2048, "conv1d_width": 4, "logits_soft_cap": 30.0}
    | {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    | {"attention_bias": False, "tie_word_embeddings": True}
    | {"block_types": ["recurrent", "recurrent", "attention"]}
)
ALIASES = {"attention_window_size": "sliding_window"}
PREFIXES = {"model.final_norm.": "model.norm."}
#: The gates lie transposed, [blocks, inputs, outputs].
STACKING = Stacking(transposed=True)
_KINDS = {"recurrent": LINEAR, "attention": FULL}


def complete(f: Fields) -> dict[str, Any]:
    """Return the kind of each layer, the width of one of an FFN's two halves, and the window."""
    width, heads = f.count("intermediate_size"), f.count("num_attention_heads")
    if width % 2:
        f.fail("intermediate_size", "an even number, since gate and up are its halves", width)
    head_dim = f.count("head_dim", f.count("hidden_size") // heads, MAX_HEAD_DIM)
    rotary_dim, rope = rotated_part(f, f.mapping("rope_parameters"), head_dim)
    lru = f.count("lru_width", f.count("hidden_size"))
    if lru % heads:
        f.fail("lru_width", f"a multiple of num_attention_heads={heads}, its blocks", lru)
    return {
        "intermediate_size": width // 2,
        "mlp_bias": True,
        "lru_width": lru,
        MIXERS: _kinds(f),
        "layer_types": [SLIDING] * f.n_layers,
        "rotary_dim": rotary_dim,
        "rope_parameters": rope,
        "partial_rotary_factor": None,
        "max_position_embeddings": f.count("max_position_embeddings", CONTEXT),
    }


def _kinds(f: Fields) -> list[str]:
    """Return the kind of each layer: the listed ones, over and over."""
    types = f.config["block_types"]
    if not isinstance(types, list) or not types:
        f.fail("block_types", "a list of at least one kind", types)
    repeated = {"block_types": [types[i % len(types)] for i in range(f.n_layers)]}
    listed = f.having(repeated).items("block_types", f.n_layers, tuple(_KINDS)) or []
    if "attention" not in listed:
        f.fail("block_types", "at least one attention", "recurrent")
    return [_KINDS[kind] for kind in listed]


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    options = AttentionOptions(bias=c.attention_bias)
    x = m.embedding(_as_bf16(c.hidden_size**0.5))
    for i, mixer in enumerate(c.fields.config[MIXERS]):
        p = f"model.layers.{i}"
        name = f"{p}.temporal_block"
        h = m.norm(x, f"{p}.temporal_pre_norm", plus_one=True)
        if mixer == FULL:
            h = m.attention(h, i, name, options)
            x = m.output(h, x, f"{name}.o_proj", bias=True)
        else:
            h = _recurrent(m, h, name)
            x = m.output(h, x, f"{name}.linear_out", bias=True)
        h = m.norm(x, f"{p}.channel_pre_norm", plus_one=True)
        x = m.feed_forward(h, x, f"{p}.mlp_block")
    return m.head(x, plus_one=True, cap=c.fields.cap("logits_soft_cap"))


def _as_bf16(x: float) -> float:
    """Round as the model's own code does; of a width of 2560, 50.596 becomes 50.5."""
    bf16 = formats.float_format("bf16")
    return float(bf16.floats(bf16.words(np.array([x], np.float32)))[0])


def _recurrent(m: ModelBuilder, h: Value, name: str) -> Value:
    """Add a recurrent layer, up to the output projection."""
    c = m.config
    width, taps = c.fields.count("lru_width"), c.fields.count("conv1d_width", most=MAX_TAPS)
    x, y = (m.linear(h, f"{name}.linear_{n}", width, bias=True) for n in "xy")
    conv = f"{name}.conv_1d"
    weight, bias = m.taps(conv, width, taps), m.weights.vector(f"{conv}.bias", width)
    x = m.add(ConvOp(name=conv, x=x, taps=weight, bias=bias, linear=True))
    lru = f"{name}.rg_lru"
    decay = m.weights.vector(f"{lru}.recurrent_param", width)
    x = m.add(RgLruOp(name=lru, x=x, gates=_gates(m, x, lru), decay=decay))
    return m.graph.glu(y, c.activation, f"{name}.act", up=(x, 0))


def _gates(m: ModelBuilder, x: Value, name: str) -> Value:
    """Add the gates of inputs, then those of the recurrence, each block by its own matrices."""
    blocks, width = m.config.n_heads, x.width // m.config.n_heads
    names = [f"{name}.{gate}_gate" for gate in ("input", "recurrent")]
    weights = list[Experts]()
    for n in names:
        part = Linear(f"{n}_weight.{{}}", width, width)
        weights += m.weights.experts(f"{n}_weight", [part], blocks, STACKING)
    bias = np.concatenate([m.weights.vector(f"{n}_bias", blocks, width) for n in names], axis=1)
    rows = m.graph.head_rows(x, Piece(width, blocks, stride=width), f"{name}.blocks")
    rows = m.graph.linear(rows, weights, f"{name}.gates", bias=bias)
    pieces = [
        (rows, Piece(width, blocks, begin=begin, column=i * x.width, to_stride=width))
        for i, begin in enumerate(rows.starts)
    ]
    return m.graph.place(2 * x.width, pieces, f"{name}.gates")
