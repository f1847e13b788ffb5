"""MPT (7B, 30B): ALiBi, LayerNorms, no biases, and an FFN without a gate.

    x = x + out_proj(attention(q, k, v));   x = x + down_proj(gelu(up_proj))

Each sublayer reads LayerNorm(x). q, k and v are one matrix, and some models limit their values.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import alibi
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("MptForCausalLM", "MPTForCausalLM")  # the second is in the authors' files
ACTIVATION = "gelu"
#: Attention's fields, which config.json has in an object of their own.
ATTENTION: dict[str, Any] = {
    "attn_type": "multihead_attention",
    "clip_qkv": None,
    "softmax_scale": None,
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
    "alibi_bias_max": 8,
}
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 50368, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16}
    | {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "expansion_ratio": 4}
    | {"attn_config": ATTENTION, "logit_scale": None, "no_bias": True}
    | {"norm_type": "low_precision_layernorm", "tie_word_embeddings": True}
)
ALIASES = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}
GGUF = {
    "mpt": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "attn.Wqkv": "attn_qkv",
            "attn.out_proj": "attn_output",
            "norm_1": "attn_norm",
            "norm_2": "ffn_norm",
            "ffn.up_proj": "ffn_up",
            "ffn.down_proj": "ffn_down",
        },
        rotates=False,
        layer_norm=True,
        reads=("attention.clamp_kqv", "attention.max_alibi_bias"),
    )
}
PREFIXES = {
    "transformer.wte.": "model.embed_tokens.",
    "transformer.norm_f.": "model.norm.",
    "transformer.blocks.": "model.layers.",
    "transformer.": "model.",
}


def attention_of(f: Fields) -> Fields:
    """Return attention's fields."""
    return f.having({**ATTENTION, **f.mapping("attn_config")})


def complete(f: Fields) -> dict[str, Any]:
    """Return the sizes that follow from others; refuse variants of other releases."""
    of, heads = attention_of(f), f.count("num_attention_heads")
    for name in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        of.supported(name, of.flag(name), False)
    of.supported("alibi", of.flag("alibi"), True)
    of.supported("attn_type", of.config["attn_type"], ATTENTION["attn_type"])
    of.supported("kv_n_heads", of.count("kv_n_heads", heads), heads)
    f.supported("no_bias", f.flag("no_bias"), True)
    f.supported("expansion_ratio", f.count("expansion_ratio"), 4)
    f.supported("logit_scale", f.config["logit_scale"], None)
    if f.config["norm_type"] != "layernorm":  # the same in float32
        f.supported("norm_type", f.config["norm_type"], DEFAULTS["norm_type"])
    return {
        "intermediate_size": 4 * f.count("hidden_size"),
        "num_key_value_heads": heads,
        "no_rope_layers": [0] * f.n_layers,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    of = attention_of(m.config.fields)
    scale = None if of.config["softmax_scale"] is None else of.factor("softmax_scale")
    attention = AttentionOptions(
        stored="Wqkv",
        clip=of.cap("clip_qkv"),
        scale=scale,
        slopes=alibi.slopes(m.config.n_heads, of.factor("alibi_bias_max")),
    )
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.norm_1", bias=False)
        h = m.attention(h, i, f"{p}.attn", attention)
        x = m.output(h, x, f"{p}.attn.out_proj")
        h = m.layer_norm(x, f"{p}.norm_2", bias=False)
        x = m.ungated(h, x, f"{p}.ffn.up_proj", f"{p}.ffn.down_proj", bias=False)
    x = m.layer_norm(m.select(x), "model.norm", bias=False)
    return m.logits(x)
