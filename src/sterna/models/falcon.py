"""Falcon, the first generation (7B, 40B, 180B, RW, and 2 11B): attention and an FFN without a gate
side by side. arXiv 2311.16867.

    x = x + dense(attention(rope(q, k), v)) + dense_4h_to_h(gelu(dense_h_to_4h))

Both read LayerNorm(x), the same or each its own; without `parallel_attn` one sublayer follows the
other. q, k and v are one matrix: the queries of heads that share keys and values precede these.
With `alibi` (RW) nothing is rotated: biases of distances are divided by sqrt(head_dim), as scores
are.
"""

from __future__ import annotations

import math
from typing import Any

from sterna.graph import Value
from sterna.models import alibi
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("FalconForCausalLM",)
ACTIVATION = "gelu"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 65024, "hidden_size": 4544, "intermediate_size": 18176}
    | {"num_attention_heads": 71, "hidden_act": ACTIVATION, "rms_norm_eps": 1e-5}
    | {"tie_word_embeddings": True, "num_ln_in_parallel_attn": None, "alibi": False}
    | {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False}
)
ALIASES = {
    "layer_norm_epsilon": "rms_norm_eps",
    "num_kv_heads": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size",
    "activation": "hidden_act",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_head_kv": "num_key_value_heads",
}
GGUF = {
    "falcon": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "self_attention.query_key_value": "attn_qkv",
            "self_attention.dense": "attn_output",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
            "input_layernorm": "attn_norm",
            "ln_mlp": "attn_norm",
            "ln_attn": "attn_norm_2",
        },
        by_head=True,
        layer_norm=True,
        biases=("output_norm",),
        renamed={"attention_bias": "bias"},
    )
}
PREFIXES = {
    "transformer.word_embeddings.": "model.embed_tokens.",
    "transformer.ln_f.": "model.norm.",
    "transformer.h.": "model.layers.",
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the heads of keys and values, what is rotated, and the biases, which all linear layers
    have."""
    heads, bias, kv_heads = f.count("num_attention_heads"), f.flag("bias"), 1
    if f.flag("new_decoder_architecture"):
        kv_heads = f.count("num_key_value_heads", heads)
    elif not f.flag("multi_query"):
        kv_heads = heads
    wide = f.count("intermediate_size", 4 * f.count("hidden_size"))
    return {
        "num_key_value_heads": kv_heads,
        "intermediate_size": wide,
        "attention_bias": bias,
        "mlp_bias": bias,
        "no_rope_layers": [int(not f.flag("alibi"))] * f.n_layers,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    bias, new = c.attention_bias, c.fields.flag("new_decoder_architecture")
    parallel = c.fields.flag("parallel_attn")
    two = new and parallel and c.fields.count("num_ln_in_parallel_attn", 2) == 2
    slopes = alibi.slopes(c.n_heads, factor=1 / math.sqrt(c.head_dim))
    attention = AttentionOptions(
        bias=bias,
        stored="query_key_value",
        by_head=True,
        slopes=slopes if c.fields.flag("alibi") else (),
    )
    x = m.embedding()
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        read = m.layer_norm(x, f"{p}.{'ln_attn' if two else 'input_layernorm'}")
        h = m.attention(read, i, f"{p}.self_attention", attention)
        added = m.output(h, x, f"{p}.self_attention.dense", bias=bias)
        if two:
            read = m.layer_norm(x, f"{p}.ln_mlp")
        elif not parallel:
            read = m.layer_norm(added, f"{p}.post_attention_layernorm")
        x = m.ungated(read, added, f"{p}.mlp.dense_h_to_4h", f"{p}.mlp.dense_4h_to_h", bias=bias)
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
