"""Jina embeddings v3, and cross-encoders of it: XLM-RoBERTa with rotations. arXiv 2409.10173.

    x = norm1(x + out_proj(attention(rope(q, k), v)))
    x = norm2(x + fc2(gelu(fc1(x))))

A cross-encoder scores a pair by its first token: out_proj(tanh(dense(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import classifier, layers, nomic_bert
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, TYPES, GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForSequenceClassification")
ACTIVATION = "gelu"
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {
    "vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "hidden_act": ACTIVATION, "max_position_embeddings": 8194,
    "type_vocab_size": 1, "layer_norm_eps": 1e-5, "rope_theta": 20000.0,
    "tie_word_embeddings": True,
}  # fmt: skip


PREFIXES = {
    f"{outer}{name}": own
    for outer in ("roberta.", "")
    for name, own in {
        "embeddings.word_embeddings.": "model.embed_tokens.",
        "embeddings.": "model.embeddings.",
        "emb_ln.": "model.embeddings.LayerNorm.",
        "encoder.layers.": "model.layers.",
        "pooler.": "model.pooler.",
    }.items()
}
GGUF = {
    "jina-bert-v3": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output", "norm1": "attn_output_norm",
            "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm",
        },
        renamed={"rms_norm_eps": "layer_norm_eps"}, layer_norm=True, encoder=True, outer=TYPES,
        biases=ENCODER_BIASES,
    )
}  # fmt: skip
_NAMES = nomic_bert.Names(attention="mixer", bias=True)


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder with rotations."""
    return {
        "use_bidirectional_attention": True,
        "rms_norm_eps": f.number("layer_norm_eps"),
        "attention_bias": True,
        "tie_word_embeddings": True,  # there is no head
        "labels": classifier.labels_of(f),
    }


def unread(c: TransformerConfig) -> set[str]:
    """Return a pooler, which no vector is made by."""
    return {"model.pooler.dense"}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the scores of a cross-encoder."""

    def ffn(x: Value, name: str) -> Value:
        return layers.ungated(g, c, w, x, x, (f"{name}.fc1", f"{name}.fc2"), ACTIVATION)

    x, table = nomic_bert.encode(g, c, w, _NAMES, ffn)
    if not c.labels:
        return layers.logits(g, c, w, x, table)
    x = classifier.dense(g, c, w, x, "classifier.dense", "tanh")
    return classifier.head(g, c, w, x, "classifier.out_proj")
