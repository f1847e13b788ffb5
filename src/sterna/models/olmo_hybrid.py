"""OLMo hybrid: OLMo 3's attention without windows in every fourth layer, gated DeltaNet in the
others. arXiv 2412.06464 (the recurrence).

    x = x + norm(o(attention(rope(norm(q), norm(k)), v)));   x = x + norm(down(silu(gate) * up))
    or x = x + o(norm(recurrence(silu(conv(q, k, v)), a, b)) silu(m));
    x = x + down(silu(gate) * up)

The sublayers of recurrent layers read RMSNorm(x). The norms of q and of k are over all of their
heads. Models without a rope_theta rotate nothing; beta is twice a sigmoid
(linear_allow_neg_eigval).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import RecurrentHeads, Value
from sterna.models import delta_net, olmo2
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL
from sterna.models.config_fields import Fields
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.qwen3_5 import LINEAR, MAX_TAPS, MIXERS
from sterna.weights.sources import Linear

ARCHITECTURES = ("OlmoHybridForCausalLM",)
DEFAULTS: dict[str, Any] = (
    olmo2.DEFAULTS
    | {"vocab_size": 100352, "hidden_size": 3840, "num_attention_heads": 30}
    | {"max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "linear_num_key_heads": 30}
    | {"linear_num_value_heads": 30, "linear_key_head_dim": 96, "linear_value_head_dim": 192}
    | {"linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True}
)
FFN_NORM = "feedforward_layer_norm"
NORM_EPS = 1e-5  # of what the recurrence makes, whatever config.json says of the others


def complete(f: Fields) -> dict[str, Any]:
    """Return the kinds of layers, and whether any has rotations."""
    kinds = f.items("layer_types", f.n_layers, (LINEAR, FULL))
    kinds = kinds or [FULL if i % 4 == 3 else LINEAR for i in range(f.n_layers)]
    if FULL not in kinds:
        f.fail("layer_types", f"at least one {FULL}", LINEAR)
    heads = delta_net.heads_of(f)
    f.supported("linear_num_value_heads", heads.v_heads, heads.k_heads)
    rope = f.mapping("rope_parameters") or {"rope_theta": f.config["rope_theta"]}
    derived: dict[str, Any] = {"layer_types": None, MIXERS: kinds}
    if rope.get("rope_theta", 0) is None:
        derived |= {"rope_theta": 1e4, "rope_parameters": None, "no_rope_layers": [0] * f.n_layers}
    return derived


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    heads = delta_net.heads_of(c.fields)
    attention = AttentionOptions(bias=c.attention_bias, qk_norm=QKNorm(whole=True))
    x = m.embedding()
    for i, mixer in enumerate(c.fields.config[MIXERS]):
        p, adds = f"model.layers.{i}", None
        if mixer == FULL:
            adds = f"{p}.post_feedforward_layernorm"
            h = m.attention(x, i, f"{p}.self_attn", attention)
            norm = f"{p}.post_attention_layernorm"
            if m.weights.has(f"{p}.{FFN_NORM}"):  # as transformers saves it
                norm = f"{p}.{FFN_NORM}"
            x = h = m.output(h, x, f"{p}.self_attn.o_proj", bias=c.attention_bias, norm_name=norm)
        else:
            h = m.norm(x, f"{p}.attention_layer_norm")
            h = _delta_net(m, h, heads, f"{p}.linear_attn")
            x = m.output(h, x, f"{p}.linear_attn.o_proj")
            h = m.norm(x, f"{p}.{FFN_NORM}")
        x = m.feed_forward(h, x, f"{p}.mlp", norm_name=adds)
    return m.head(x)


def _delta_net(m: ModelBuilder, h: Value, heads: RecurrentHeads, name: str) -> Value:
    keys = heads.k_heads * heads.k_dim
    widths = {
        "q": keys,
        "k": keys,
        "v": heads.v_width,
        "g": heads.v_width,
        "b": heads.v_heads,
        "a": heads.v_heads,
    }
    parts = [Linear(f"{name}.{part}_proj", M, h.width) for part, M in widths.items()]
    row, columns = m.merged_linear(h, f"{name}.qkvgba_proj", parts)
    pieces = [(row, begin, M) for begin, M in zip(columns, widths.values(), strict=True)]
    row = delta_net.side_by_side(m, pieces, f"{name}.qkvgba_proj")
    z, b, a = heads.width, heads.width + heads.v_width, heads.width + heads.v_width + heads.v_heads
    width = m.config.fields.count("linear_conv_kernel_dim", most=MAX_TAPS)
    taps = delta_net.split_taps(m.weights, name, heads, width)
    decay = delta_net.Decay.of(m.weights, name, heads)
    strength = 2.0 if m.config.fields.flag("linear_allow_neg_eigval") else 1.0
    return delta_net.layer(
        m, (row, z, b, a), heads, name, taps, decay, norm="o_norm", eps=NORM_EPS, strength=strength
    )
