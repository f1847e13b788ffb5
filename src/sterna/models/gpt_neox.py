"""GPT-NeoX and Pythia: attention and an FFN without a gate side by side, biases everywhere.
arXiv 2204.06745, 2304.01373.

    x = x + dense(attention(rope(q, k), v)) + dense_4h_to_h(gelu(dense_h_to_4h))

Each sublayer reads a LayerNorm of x. q, k and v are one matrix, head by head, and a part of each
head is rotated.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import phi
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import READS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("GPTNeoXForCausalLM",)
ACTIVATION = "gelu"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576}
    | {"num_hidden_layers": 44, "num_attention_heads": 64, "hidden_act": ACTIVATION}
    | {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "use_parallel_residual": True}
    | {"attention_bias": True}
)
ALIASES = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
GGUF = {
    "gptneox": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        READS
        | {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"}
        | {"mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"},
        partial=True,
        by_head=True,
        layer_norm=True,
        biases=("output_norm",),
        keys={"use_parallel_residual": "use_parallel_residual"},
        renamed={"rms_norm_eps": "layer_norm_eps"},
    )
}
PREFIXES = {
    "gpt_neox.embed_in.": "model.embed_tokens.",
    "gpt_neox.final_layer_norm.": "model.norm.",
    "gpt_neox.": "model.",
    "embed_out.": "lm_head.",
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms, and the part of a head that is rotated."""
    heads = f.count("num_attention_heads")
    f.supported("num_key_value_heads", f.count("num_key_value_heads", heads), heads)
    return phi.complete(f)


def unread(c: TransformerConfig) -> set[str]:
    """Return the masks, which older checkpoints have as tensors."""
    return {f"model.layers.{i}.attention" for i in range(c.n_layers)}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    bias, parallel = m.config.attention_bias, m.config.fields.flag("use_parallel_residual")
    attention = AttentionOptions(bias=bias, stored="query_key_value", by_head=True)
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.input_layernorm")
        h = m.attention(h, i, f"{p}.attention", attention)
        added = m.output(h, x, f"{p}.attention.dense", bias=bias)
        read = x if parallel else added
        h = m.layer_norm(read, f"{p}.post_attention_layernorm")
        x = m.ungated(h, added, f"{p}.mlp.dense_h_to_4h", f"{p}.mlp.dense_4h_to_h")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
