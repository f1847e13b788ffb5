"""Jina embeddings v2, and cross-encoders of it (Jina reranker v1): BERT with ALiBi, which falls on
both sides of a position, and gated FFNs. arXiv 2310.19923.

    x = norm(x + output.dense(attention(q, k, v)))
    x = layernorm(x + wo(gelu(gate) * up)), [gate | up] = gated_layers(x)

The model of code has other names, normalises q and k, each over all heads, and has one norm more:

    x = layer_norm_1(x + norm(x + output.dense(attention(norm_q(q), norm_k(k), v))))
    x = layer_norm_2(x + down_layer(gelu(gate) * up)), [up | gate] = up_gated_layer(x)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Piece, Value
from sterna.graph.ops import PartsOp, RowwiseOp
from sterna.models import alibi, bert, classifier
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, SCORES, TYPES, GgufArchitecture
from sterna.models.options import AttentionOptions
from sterna.weights.sources import Linear

ARCHITECTURES = ("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = bert.DEFAULTS | {
    "position_embedding_type": "absolute",
    "feed_forward_type": "original",
}
PREFIXES = bert.PREFIXES
GGUF = {
    "jina-bert-v2": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "attention.self.query": "attn_q",
            "attention.self.key": "attn_k",
            "attention.self.value": "attn_v",
            "attention.self.layer_norm_q": "attn_q_norm",
            "attention.self.layer_norm_k": "attn_k_norm",
            "attention.output.dense": "attn_output",
            "attention.output.LayerNorm": "attn_output_norm",
            "layer_norm_1": "attn_norm_2",
            # A matrix of gate and up, or in older files two.
            "mlp.gated_layers": "ffn_up",
            "mlp.up_gated_layer": "ffn_up",
            "mlp.gate": "ffn_gate",
            "mlp.up": "ffn_up",
            "mlp.wo": "ffn_down",
            "mlp.down_layer": "ffn_down",
            "intermediate.dense": "ffn_up",
            "output.dense": "ffn_down",
            "mlp.layernorm": "layer_output_norm",
            "layer_norm_2": "layer_output_norm",
            "output.LayerNorm": "layer_output_norm",
        },
        renamed={"rms_norm_eps": "layer_norm_eps"},
        layer_norm=True,
        encoder=True,
        rotates=False,
        outer={**TYPES, **SCORES, "model.pooler.dense": "cls"},
        biases=ENCODER_BIASES,
        unsaid={"position_embedding_type": "alibi"},
    )
}
_QKV = ("query", "key", "value")


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder without positions."""
    for feature in ("is_decoder", "add_cross_attention"):
        f.supported(feature, f.flag(feature), False)
    f.supported("position_embedding_type", f.config["position_embedding_type"], "alibi")
    if f.config["feed_forward_type"] != "original":
        f.supported("feed_forward_type", f.config["feed_forward_type"], "geglu")
    return {
        "use_bidirectional_attention": True,
        "rms_norm_eps": f.number("layer_norm_eps"),
        "no_rope_layers": [0] * f.n_layers,
        "attention_bias": True,
        "tie_word_embeddings": True,  # there is no head
        "labels": classifier.labels_of(f),
    }


def unread(c: TransformerConfig) -> set[str]:
    """Name the tensors that nothing reads, as of a BERT: positions, and a pooler."""
    return bert.unread(c)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the scores of a cross-encoder."""
    c = m.config
    slopes = alibi.slopes(c.n_heads)
    x = m.embedding()
    x = m.add(PartsOp(name=bert.TOKEN_TYPES, x=x, table=bert.token_types(m)))
    x = m.layer_norm(x, "model.embeddings.LayerNorm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = _attention(m, x, i, f"{p}.attention.self", slopes)
        h = m.output(h, x, f"{p}.attention.output.dense", bias=True)
        h = m.layer_norm(h, f"{p}.attention.output.LayerNorm")
        if m.weights.has(f"{p}.layer_norm_1"):
            h = m.add(RowwiseOp(name=f"{p}.attention.residual", x=h, residual=x))
            h = m.layer_norm(h, f"{p}.layer_norm_1")
        h, norm = _feed_forward(m, h, p)
        h = m.select(h) if i == c.n_layers - 1 else h
        x = m.layer_norm(h, norm)
    return classifier.pooled(m, x)


def _attention(
    m: ModelBuilder, x: Value, layer: int, name: str, slopes: tuple[float, ...]
) -> Value:
    """Attention of a layer, whose queries and keys may be normalised first."""
    options = AttentionOptions(bias=True, names=_QKV, slopes=slopes)
    if not m.weights.has(f"{name}.layer_norm_q"):
        return m.attention(x, layer, name, options)
    d, rows = m.config.hidden_size, list[tuple[Value, Piece]]()
    for part, norm in zip(_QKV, ("layer_norm_q", "layer_norm_k", None), strict=True):
        of = f"{name}.{part}"
        row = m.linear(x, of, d, bias=True)
        row = m.layer_norm(row, f"{name}.{norm}") if norm else row
        rows.append((row, Piece(d, column=len(rows) * d)))
    attention = replace(m.config.attention[layer], slopes=slopes)
    return m.graph.attention(m.graph.place(3 * d, rows, f"{name}.qkv"), layer, attention)


def _feed_forward(m: ModelBuilder, x: Value, p: str) -> tuple[Value, str]:
    """x + the FFN of x, and the name of the norm behind it."""
    if m.config.fields.config["feed_forward_type"] == "original":
        x = m.ungated(x, x, f"{p}.intermediate.dense", f"{p}.output.dense")
        return x, f"{p}.output.LayerNorm"
    ff, of_code = m.config.intermediate_size, m.weights.has(f"{p}.layer_norm_1")
    both = f"{p}.mlp.up_gated_layer" if of_code else f"{p}.mlp.gated_layers"
    parts = [Linear(both, 2 * ff, x.width)]
    if m.weights.has(f"{p}.mlp.gate"):
        order = ("up", "gate") if of_code else ("gate", "up")
        parts = [Linear(f"{p}.mlp.{part}", ff, x.width) for part in order]
    h, _ = m.merged_linear(x, both, parts)
    if of_code:
        begin = h.starts[1] if len(h.starts) > 1 else ff
        gate, up = Piece(ff, begin=begin), Piece(ff, column=ff)
        h = m.graph.place(2 * ff, [(h, gate), (h, up)], both)
    h = m.glu(h, f"{p}.mlp.act")
    down, norm = ("mlp.down_layer", "layer_norm_2") if of_code else ("mlp.wo", "mlp.layernorm")
    return m.output(h, x, f"{p}.{down}", bias=True), f"{p}.{norm}"
