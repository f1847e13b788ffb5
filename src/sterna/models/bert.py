"""BERT, and cross-encoders of it: a LayerNorm after each sublayer, and biases everywhere. arXiv
1810.04805.

    x = norm(x + output.dense(attention(q, k, v)))
    x = norm(x + output.dense(gelu(intermediate.dense(x))))

x begins as the norm of a token's row, its position's and that of its part of a pair of texts. A
cross-encoder scores a pair by its first token: classifier(tanh(pooler(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.graph.heads import F32
from sterna.graph.ops import PartsOp, PositionsOp
from sterna.models import classifier
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, SCORES, TYPES, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("BertModel", "BertForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    | {"intermediate_size": 3072, "hidden_act": ACTIVATION, "max_position_embeddings": 512}
    | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "add_cross_attention": False}
    | {"tie_word_embeddings": True}
)
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
            "attention.self.query": "attn_q",
            "attention.self.key": "attn_k",
            "attention.self.value": "attn_v",
            "attention.output.dense": "attn_output",
            "attention.output.LayerNorm": "attn_output_norm",
            "intermediate.dense": "ffn_up",
            "output.dense": "ffn_down",
            "output.LayerNorm": "layer_output_norm",
        },
        renamed={"rms_norm_eps": "layer_norm_eps"},
        layer_norm=True,
        encoder=True,
        outer=TYPES
        | SCORES
        | {"model.embeddings.position_embeddings": "position_embd"}
        | {"model.pooler.dense": "cls"},
        biases=ENCODER_BIASES,
    )
}
TOKEN_TYPES = "model.embeddings.token_type_embeddings"
_QKV = AttentionOptions(bias=True, names=("query", "key", "value"))


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


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the scores of a cross-encoder."""
    return classifier.pooled(m, encode(m, first=0))


def token_types(m: ModelBuilder) -> F32:
    """Read a row for each part of a pair of texts: float32 [parts, hidden_size]."""
    count = m.config.fields.count("type_vocab_size")
    return m.weights.vector(f"{TOKEN_TYPES}.weight", count, m.config.hidden_size)


def encode(m: ModelBuilder, first: int) -> Value:
    """Add all layers but the head; return its input.

    first: the row of the first position in the table of positions.
    """
    c = m.config
    e, d = "model.embeddings", c.hidden_size
    positions = m.weights.vector(f"{e}.position_embeddings.weight", first + c.most_positions, d)
    types = token_types(m)
    x = m.add(PartsOp(name=TOKEN_TYPES, x=m.embedding(), table=types))
    x = m.add(PositionsOp(name=f"{e}.position_embeddings", x=x, table=positions, first=first))
    x = m.layer_norm(x, f"{e}.LayerNorm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = m.attention(x, i, f"{p}.attention.self", _QKV)
        h = m.output(h, x, f"{p}.attention.output.dense", bias=True)
        x = m.layer_norm(h, f"{p}.attention.output.LayerNorm")
        h = m.ungated(x, x, f"{p}.intermediate.dense", f"{p}.output.dense")
        h = m.select(h) if i == c.n_layers - 1 else h
        x = m.layer_norm(h, f"{p}.output.LayerNorm")
    return x
