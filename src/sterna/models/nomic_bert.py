"""NomicBERT: BERT with rotations, gated FFNs and few biases. arXiv 2402.01613.

    x = norm1(x + out_proj(attention(rope(q, k), v)))
    x = norm2(x + fc2(silu(fc12) * fc11))

q, k and v are one matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sterna.graph import Value
from sterna.graph.ops import PartsOp
from sterna.models import bert
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, TYPES, GgufArchitecture
from sterna.models.options import AttentionOptions
from sterna.weights.sources import Linear

ARCHITECTURES = ("NomicBertModel",)
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    | {"intermediate_size": 3072, "hidden_act": "silu", "max_position_embeddings": 2048}
    | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "rope_theta": 1000.0}
)
ALIASES = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
    "layer_norm_epsilon": "layer_norm_eps",
}
PREFIXES = {
    "embeddings.word_embeddings.": "model.embed_tokens.",
    "embeddings.": "model.embeddings.",
    "emb_ln.": "model.embeddings.LayerNorm.",
    "encoder.layers.": "model.layers.",
}
GGUF = {
    "nomic-bert": GgufArchitecture(
        ARCHITECTURES[0],
        "silu",
        {
            "attn.Wqkv": "attn_qkv",
            "attn.out_proj": "attn_output",
            "norm1": "attn_output_norm",
            "mlp.fc12": "ffn_gate",
            "mlp.fc11": "ffn_up",
            "mlp.fc2": "ffn_down",
            "norm2": "layer_output_norm",
        },
        renamed={"rms_norm_eps": "layer_norm_eps"},
        layer_norm=True,
        encoder=True,
        outer=TYPES,
        biases=ENCODER_BIASES,
    )
}
#: Fields of the authors' class that change the result, and their required values.
_FIXED = {
    "prenorm": False,
    "parallel_block": False,
    "rotary_emb_interleaved": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "use_rms_norm": False,
    "rotary_emb_fraction": 1.0,
    "causal": False,
    "activation_function": "swiglu",
    "rotary_scaling_factor": None,
    "rotary_emb_scale_base": None,
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder with rotations."""
    for name, wanted in _FIXED.items():
        f.supported(name, f.config.get(name) if f.config.get(name) is not None else wanted, wanted)
    return {
        "use_bidirectional_attention": True,
        "rms_norm_eps": f.number("layer_norm_eps"),
        "tie_word_embeddings": True,  # there is no head
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return m.logits(encode(m, Names(), _ffn))


def _ffn(m: ModelBuilder, x: Value, name: str) -> Value:
    width = m.config.intermediate_size
    parts = [Linear(f"{name}.{part}", width, x.width) for part in ("fc12", "fc11")]
    h, _ = m.merged_linear(x, f"{name}.gate_up_proj", parts)
    return m.output(m.glu(h, f"{name}.act"), x, f"{name}.fc2")


@dataclass(frozen=True)
class Names:
    """Names of a layer's attention, of its matrix of q, k and v and that of its output, and of the
    norms after both sublayers; bias: whether those matrices have biases."""

    attention: str = "attn"
    qkv: str = "Wqkv"
    output: str = "out_proj"
    norms: tuple[str, str] = ("norm1", "norm2")
    bias: bool = False


def encode(
    m: ModelBuilder, names: Names, ffn: Callable[[ModelBuilder, Value, str], Value]
) -> Value:
    """Add all layers but the head; return its input.

    ffn: (builder, x, the FFN's name) -> x + the FFN of x.
    """
    c = m.config
    attention = AttentionOptions(stored=names.qkv, bias=names.bias)
    x = m.embedding()
    if c.fields.config["type_vocab_size"]:
        x = m.add(PartsOp(name=bert.TOKEN_TYPES, x=x, table=bert.token_types(m)))
    x = m.layer_norm(x, "model.embeddings.LayerNorm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        at = f"{p}.{names.attention}"
        h = m.attention(x, i, at, attention)
        h = m.output(h, x, f"{at}.{names.output}", bias=names.bias)
        x = m.layer_norm(h, f"{p}.{names.norms[0]}")
        h = ffn(m, x, f"{p}.mlp")
        h = m.select(h) if i == c.n_layers - 1 else h
        x = m.layer_norm(h, f"{p}.{names.norms[1]}")
    return x
