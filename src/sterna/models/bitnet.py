"""BitNet b1.58 (BitNetForCausalLM): ternary linear layers, relu^2, and a norm before o and down.

    x = x + o(norm(attention(rope(q, k), v)));   x = x + down(norm(relu(gate)^2 * up))

Each sublayer reads RMSNorm(x). arXiv 2504.12285.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import LINEARS, READS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("BitNetForCausalLM",)
ACTIVATION = "relu2"
TERNARY = True  # float tensors of linear layers are masters, to be ternarised
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 128256, "hidden_size": 2560, "intermediate_size": 6912}
    | {"num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5}
    | {"hidden_act": ACTIVATION, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}
    | {"attention_bias": False}
)
GGUF = dict.fromkeys(
    ("bitnet-25", "bitnet-b1.58"),
    GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,  # no key of these files says it
        LINEARS
        | READS
        | {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ),
)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return write(m, "self_attn.attn_sub_norm", "mlp.ffn_sub_norm")


def write(m: ModelBuilder, attention_norm: str, ffn_norm: str) -> Value:
    """Add the layers; the names are the checkpoint's, for the norms before o and down."""
    c = m.config
    x = m.embedding()
    options = AttentionOptions(bias=c.attention_bias)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm")
        h = m.attention(h, i, f"{p}.self_attn", options)
        h = m.norm(h, f"{p}.{attention_norm}")
        x = m.output(h, x, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        h = m.norm(x, f"{p}.post_attention_layernorm")
        h = m.glu(m.gate_up(h, f"{p}.mlp"), f"{p}.mlp.act")
        h = m.norm(h, f"{p}.{ffn_norm}")
        x = m.output(h, x, f"{p}.mlp.down_proj", bias=c.mlp_bias)
    return m.head(x)
