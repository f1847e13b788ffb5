"""NomicBERT: BERT with rotations, gated FFNs and few biases. arXiv 2402.01613.

    x = norm1(x + out_proj(attention(rope(q, k), v)))
    x = norm2(x + fc2(silu(fc12) * fc11))

q, k and v are one matrix.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("NomicBertModel",)
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {
    "vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": ACTIVATION, "max_position_embeddings": 2048,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "rope_theta": 1000.0,
}  # fmt: skip
ALIASES = {
    "n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta", "layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
PREFIXES = {
    "embeddings.word_embeddings.": "model.embed_tokens.",
    "embeddings.": "model.embeddings.",
    "emb_ln.": "model.embeddings.LayerNorm.",
    "encoder.layers.": "model.layers.",
}
#: Fields of the authors' class that say how a text is computed, and what they must be.
_FIXED = {
    "prenorm": False, "parallel_block": False, "rotary_emb_interleaved": False,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "use_rms_norm": False,
    "rotary_emb_fraction": 1.0, "causal": False, "activation_function": "swiglu",
    "rotary_scaling_factor": None, "rotary_emb_scale_base": None,
}  # fmt: skip
_QKV = layers.AttentionOptions(stored="Wqkv")


def complete(f: Fields) -> dict[str, Any]:
    """Return what an encoder with rotations is."""
    for name, wanted in _FIXED.items():
        f.supported(name, f.config.get(name) if f.config.get(name) is not None else wanted, wanted)
    return {
        "use_bidirectional_attention": True,
        "rms_norm_eps": f.number("layer_norm_eps"),
        "tie_word_embeddings": True,  # there is no head
    }


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`."""
    e, d, ff = "model.embeddings", c.hidden_size, c.intermediate_size
    x, table = layers.embedding(g, c, w)
    kinds = c.fields.count("type_vocab_size")
    parts = w.vector(f"{e}.token_type_embeddings.weight", kinds, d)
    x = g.parts(x, parts, f"{e}.token_type_embeddings")
    x = layers.layer_norm(g, c, w, x, f"{e}.LayerNorm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.attention(g, c, w, x, i, f"{p}.attn", _QKV)
        h = layers.output(g, c, w, h, x, f"{p}.attn.out_proj")
        x = layers.layer_norm(g, c, w, h, f"{p}.norm1")
        gate_up = [Linear(f"{p}.mlp.{name}", ff, d) for name in ("fc12", "fc11")]
        h = layers.linear(g, c, w, x, f"{p}.mlp.gate_up_proj", gate_up)
        h = layers.output(g, c, w, g.glu(h, ACTIVATION, f"{p}.mlp.act"), x, f"{p}.mlp.fc2")
        h = g.select(h) if i == c.n_layers - 1 else h
        x = layers.layer_norm(g, c, w, h, f"{p}.norm2")
    return layers.logits(g, c, w, x, table)
