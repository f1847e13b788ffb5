"""BERT, and cross-encoders of it: a LayerNorm after each half, and biases everywhere. arXiv
1810.04805.

    x = norm(x + output.dense(attention(q, k, v)))
    x = norm(x + output.dense(gelu(intermediate.dense(x))))

x begins as the norm of a token's row, its position's and that of its part of a pair of texts. A
cross-encoder scores a pair by its first token: classifier(tanh(pooler(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.formats import PackedWeight
from sterna.graph import GraphBuilder, Value
from sterna.models import classifier, layers
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, SCORES, TYPES, GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("BertModel", "BertForSequenceClassification")
ACTIVATION = "gelu"
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": ACTIVATION, "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "add_cross_attention": False,
    "tie_word_embeddings": True,
}  # fmt: skip
PREFIXES = {
    f"{outer}{name}": own
    for outer in ("bert.", "")
    for name, own in {
        "embeddings.word_embeddings.": "model.embed_tokens.",
        "embeddings.": "model.embeddings.",
        "encoder.layer.": "model.layers.",
    }.items()
} | {"bert.pooler.": "model.pooler."}
GGUF = {
    "bert": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "attention.self.query": "attn_q", "attention.self.key": "attn_k",
            "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
            "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
            "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
        },
        renamed={"rms_norm_eps": "layer_norm_eps"}, layer_norm=True, encoder=True,
        outer={
            **TYPES, **SCORES, "model.embeddings.position_embeddings": "position_embd",
            "model.pooler.dense": "cls",
        },
        biases=ENCODER_BIASES,
    )
}  # fmt: skip
_QKV = layers.AttentionOptions(bias=True, names=("query", "key", "value"))


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder with learned positions."""
    for feature in ("is_decoder", "add_cross_attention"):
        f.supported(feature, f.flag(feature), False)
    kind = f.config.get("position_embedding_type") or "absolute"
    f.supported("position_embedding_type", kind, "absolute")
    return {
        "use_bidirectional_attention": True,
        "rms_norm_eps": f.number("layer_norm_eps"),
        "no_rope_layers": [0] * f.n_layers,
        "learned_positions": True,
        "attention_bias": True,
        "tie_word_embeddings": True,  # there is no head
        "labels": classifier.labels_of(f),
    }


def unread(c: TransformerConfig) -> set[str]:
    """Return the positions' numbers, which older files have as a tensor, and an unused pooler."""
    return {"model.embeddings"} | (set() if c.labels else {"model.pooler.dense"})


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the scores of a cross-encoder."""
    x, table = encode(g, c, w, first=0)
    return classifier.pooled(g, c, w, x, table)


def encode(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, first: int
) -> tuple[Value, PackedWeight]:
    """Write all but the head; also return the table of tokens.

    first: the row of the first position in the table of positions.
    """
    e, d = "model.embeddings", c.hidden_size
    positions = w.vector(f"{e}.position_embeddings.weight", first + c.most_positions, d)
    parts = w.vector(f"{e}.token_type_embeddings.weight", c.fields.count("type_vocab_size"), d)
    x, table = layers.embedding(g, c, w)
    x = g.parts(x, parts, f"{e}.token_type_embeddings")
    x = g.positions(x, positions, f"{e}.position_embeddings", first)
    x = layers.layer_norm(g, c, w, x, f"{e}.LayerNorm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.attention(g, c, w, x, i, f"{p}.attention.self", _QKV)
        h = layers.output(g, c, w, h, x, f"{p}.attention.output.dense", bias=True)
        x = layers.layer_norm(g, c, w, h, f"{p}.attention.output.LayerNorm")
        names = f"{p}.intermediate.dense", f"{p}.output.dense"
        h = layers.ungated(g, c, w, x, x, names, ACTIVATION)
        h = g.select(h) if i == c.n_layers - 1 else h
        x = layers.layer_norm(g, c, w, h, f"{p}.output.LayerNorm")
    return x, table
