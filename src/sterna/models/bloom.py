"""BLOOM and BLOOMZ: ALiBi, LayerNorms, biases everywhere, and an FFN without a gate.
arXiv 2211.05100.

    x = x + dense(attention(q, k, v));   x = x + dense_4h_to_h(gelu(dense_h_to_4h))

x begins as the norm of a token's row, and each sublayer reads LayerNorm(x). q, k and v are one
matrix, head by head.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import alibi
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import READS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("BloomForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 250880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
    | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "slow_but_exact": False}
    | {"apply_residual_connection_post_layernorm": False}
)
ALIASES = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "layer_norm_epsilon": "rms_norm_eps",
    "seq_length": "max_position_embeddings",
}
GGUF = {
    "bloom": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        READS
        | {"self_attention.query_key_value": "attn_qkv"}
        | {"self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up"}
        | {"mlp.dense_4h_to_h": "ffn_down"},
        by_head=True,
        rotates=False,
        layer_norm=True,
        biases=("output_norm", "token_embd_norm"),
        outer={"model.embed_norm": "token_embd_norm"},
    )
}
#: Published checkpoints have no transformer.
PREFIXES = {
    outer + name: to
    for outer in ("transformer.", "")
    for name, to in {
        "word_embeddings.": "model.embed_tokens.",
        "word_embeddings_layernorm.": "model.embed_norm.",
        "ln_f.": "model.norm.",
        "h.": "model.layers.",
    }.items()
}
CONTEXT = 2048  # of training; published files of smaller models leave it out


def complete(f: Fields) -> dict[str, Any]:
    """Return the sizes that follow from others, and that no layer has rotations."""
    return {
        "max_position_embeddings": f.count("max_position_embeddings", CONTEXT),
        "intermediate_size": 4 * f.count("hidden_size"),
        "num_key_value_heads": f.count("num_attention_heads"),
        "no_rope_layers": [0] * f.n_layers,
        "attention_bias": True,
        "mlp_bias": True,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    adds_norm = m.config.fields.flag("apply_residual_connection_post_layernorm")
    attention = AttentionOptions(
        bias=True, stored="query_key_value", by_head=True, slopes=alibi.slopes(m.config.n_heads)
    )
    x = m.embedding()
    x = m.layer_norm(x, "model.embed_norm")
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        read = m.layer_norm(x, f"{p}.input_layernorm")
        h = m.attention(read, i, f"{p}.self_attention", attention)
        x = m.output(h, read if adds_norm else x, f"{p}.self_attention.dense", bias=True)
        read = m.layer_norm(x, f"{p}.post_attention_layernorm")
        x = read if adds_norm else x
        x = m.ungated(read, x, f"{p}.mlp.dense_h_to_4h", f"{p}.mlp.dense_4h_to_h")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
