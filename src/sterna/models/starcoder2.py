"""StarCoder 2: LayerNorm, biases everywhere, and an FFN without a gate. arXiv 2402.19173.

    x = x + o(attention(rope(q, k), v));   x = x + c_proj(gelu(c_fc))

Each sublayer reads LayerNorm(x).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import mistral
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, READS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("Starcoder2ForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288}
    | {"num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2}
    | {"hidden_act": ACTIVATION, "max_position_embeddings": 4096, "norm_epsilon": 1e-5}
    | {"sliding_window": None, "use_bias": True, "tie_word_embeddings": True}
)
GGUF = {
    "starcoder2": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {**ATTENTION, **READS, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        renamed={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias"},
        layer_norm=True,
        biases=("output_norm",),
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms and the biases, by the names of other files."""
    return mistral.complete(f) | {
        "rms_norm_eps": f.number("norm_epsilon"),
        "attention_bias": f.flag("use_bias"),
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    bias = m.config.attention_bias
    attention = AttentionOptions(bias=bias)
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.input_layernorm")
        h = m.attention(h, i, f"{p}.self_attn", attention)
        x = m.output(h, x, f"{p}.self_attn.o_proj", bias=bias)
        h = m.layer_norm(x, f"{p}.post_attention_layernorm")
        x = m.ungated(h, x, f"{p}.mlp.c_fc", f"{p}.mlp.c_proj", bias=bias)
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
