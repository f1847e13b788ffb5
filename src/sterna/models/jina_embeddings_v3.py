"""Jina embeddings v3, and cross-encoders of it: XLM-RoBERTa with rotations. arXiv 2409.10173.

    x = norm1(x + out_proj(attention(rope(q, k), v)))
    x = norm2(x + fc2(gelu(fc1(x))))

A cross-encoder scores a pair by its first token: out_proj(tanh(dense(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import classifier, nomic_bert
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, TYPES, GgufArchitecture

ARCHITECTURES = ("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24}
    | {"num_attention_heads": 16, "intermediate_size": 4096, "hidden_act": ACTIVATION}
    | {"max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    | {"rope_theta": 20000.0, "tie_word_embeddings": True}
)


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
            "mixer.Wqkv": "attn_qkv",
            "mixer.out_proj": "attn_output",
            "norm1": "attn_output_norm",
            "mlp.fc1": "ffn_up",
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


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the scores of a cross-encoder."""
    x = nomic_bert.encode(m, _NAMES, _ffn)
    if not m.config.labels:
        return m.logits(x)
    x = classifier.dense(m, x, "classifier.dense", "tanh")
    return classifier.head(m, x, "classifier.out_proj")


def _ffn(m: ModelBuilder, x: Value, name: str) -> Value:
    return m.ungated(x, x, f"{name}.fc1", f"{name}.fc2")
