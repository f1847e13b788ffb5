"""ModernBERT, and cross-encoders of it: rotations, windows on both sides, gated FFNs, norms first.
arXiv 2412.13663.

    x = x + Wo(attention(rope(Wqkv(norm(x)))))
    x = x + Wo(gelu(gate) * up), [gate | up] = Wi(norm(x))

The first layer reads the embedding's norm itself. Every third layer attends to the whole text, with
a base of its own for its rotations. A cross-encoder scores its first token, or the mean of all:
classifier(norm(gelu(dense(x)))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import classifier
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, SCORES, SWA_BASE, GgufArchitecture
from sterna.models.options import AttentionOptions
from sterna.models.rope import rotations_of

ARCHITECTURES = ("ModernBertModel", "ModernBertForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12}
    | {"intermediate_size": 1152, "hidden_act": ACTIVATION, "max_position_embeddings": 8192}
    | {"norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "local_attention": 128}
    | {"mlp_bias": False, "classifier_pooling": "cls", "classifier_bias": False}
    | {"classifier_activation": "gelu", "tie_word_embeddings": True, "global_rope_theta": 160000.0}
    | {"local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}
)
PREFIXES = {
    f"{outer}{name}": own
    for outer in ("model.", "")
    for name, own in {
        "embeddings.tok_embeddings.": "model.embed_tokens.",
        "embeddings.": "model.embeddings.",
        "layers.": "model.layers.",
        "final_norm.": "model.final_norm.",
    }.items()
}
GGUF = {
    "modern-bert": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "attn_norm": "attn_norm",
            "attn.Wqkv": "attn_qkv",
            "attn.Wo": "attn_output",
            "mlp_norm": "ffn_norm",
            "mlp.Wi": "ffn_up",
            "mlp.Wo": "ffn_down",
        },
        renamed={"rms_norm_eps": "norm_eps"},
        layer_norm=True,
        encoder=True,
        outer=SCORES
        | {"model.embeddings.norm": "token_embd_norm", "model.final_norm": "output_norm"}
        | {"head.dense": "cls", "head.norm": "cls.norm"},
        biases=(*ENCODER_BIASES, "output_norm", "cls.norm"),
        reads=(SWA_BASE,),
    )
}
#: Activations of the FFN: IBM's models have the second.
_ACTIVATIONS = ("gelu", "silu")


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder with windows; one of 2n has n positions on both sides."""
    activation = f.config.get("hidden_act")
    if activation not in _ACTIVATIONS:
        f.supported("hidden_act", activation, ACTIVATION)
    f.supported("classifier_activation", f.config.get("classifier_activation"), "gelu")
    labels, pooled = classifier.labels_of(f), f.config.get("classifier_pooling")
    if labels and pooled != "mean":
        f.supported("classifier_pooling", pooled, "cls")
    every = f.count("global_attn_every_n_layers")
    kinds = [SLIDING if i % every else FULL for i in range(f.n_layers)]
    return {
        "use_bidirectional_attention": True,
        "hidden_act": ACTIVATION,
        "ffn_activation": activation,
        "rms_norm_eps": f.number("norm_eps"),
        "layer_types": f.config.get("layer_types") or kinds,
        "sliding_window": f.count("local_attention") // 2 + 1,
        "rope_parameters": rotations_of(
            f,
            {
                FULL: {"rope_theta": f.number("global_rope_theta")},
                SLIDING: {"rope_theta": f.number("local_rope_theta")},
            },
        ),
        "tie_word_embeddings": True,  # there is no head
        "labels": labels,
        "label_row": "mean" if pooled == "mean" else "first",
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the scores of a cross-encoder."""
    c = m.config
    f = c.fields
    attention = AttentionOptions(stored="Wqkv", bias=c.attention_bias)

    def norm(x: Value, name: str) -> Value:
        return m.layer_norm(x, name, bias=f.flag("norm_bias"))

    x = m.embedding()
    x = norm(x, "model.embeddings.norm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = norm(x, f"{p}.attn_norm") if i else x
        h = m.attention(h, i, f"{p}.attn", attention)
        x = m.output(h, x, f"{p}.attn.Wo", bias=c.attention_bias)
        h = norm(x, f"{p}.mlp_norm")
        h = m.linear(h, f"{p}.mlp.Wi", 2 * c.intermediate_size, bias=c.mlp_bias)
        h = m.graph.glu(h, f.config["ffn_activation"], f"{p}.mlp.act")
        x = m.output(h, x, f"{p}.mlp.Wo", bias=c.mlp_bias)
    if c.label_row == "mean":
        x = m.select(norm(x, "model.final_norm"), mean=True)
    else:
        x = norm(m.select(x), "model.final_norm")
    if not c.labels:
        return m.logits(x)
    x = classifier.dense(m, x, "head.dense", "gelu", bias=f.flag("classifier_bias"))
    return classifier.head(m, norm(x, "head.norm"), "classifier")
