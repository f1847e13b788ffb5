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

from sterna.graph import GraphBuilder, Value
from sterna.models import classifier, layers
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ENCODER_BIASES, SCORES, SWA_BASE, GgufArchitecture
from sterna.models.rotations import rotations_of
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("ModernBertModel", "ModernBertForSequenceClassification")
ACTIVATION = "gelu"
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
    "intermediate_size": 1152, "hidden_act": ACTIVATION, "max_position_embeddings": 8192,
    "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "local_attention": 128,
    "mlp_bias": False, "classifier_pooling": "cls", "classifier_bias": False,
    "classifier_activation": "gelu", "tie_word_embeddings": True, "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3,
}  # fmt: skip
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
            "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output",
            "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
        },
        renamed={"rms_norm_eps": "norm_eps"}, layer_norm=True, encoder=True,
        outer={
            **SCORES, "model.embeddings.norm": "token_embd_norm",
            "model.final_norm": "output_norm", "head.dense": "cls", "head.norm": "cls.norm",
        },
        biases=(*ENCODER_BIASES, "output_norm", "cls.norm"), reads=(SWA_BASE,),
    )
}  # fmt: skip
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


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the scores of a cross-encoder."""
    f, ff, d = c.fields, c.intermediate_size, c.hidden_size
    attention = layers.AttentionOptions(stored="Wqkv", bias=c.attention_bias)

    def norm(x: Value, name: str) -> Value:
        return layers.layer_norm(g, c, w, x, name, bias=f.flag("norm_bias"))

    x, table = layers.embedding(g, c, w)
    x = norm(x, "model.embeddings.norm")
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = norm(x, f"{p}.attn_norm") if i else x
        h = layers.attention(g, c, w, h, i, f"{p}.attn", attention)
        x = layers.output(g, c, w, h, x, f"{p}.attn.Wo", bias=c.attention_bias)
        h = norm(x, f"{p}.mlp_norm")
        h = layers.linear(g, c, w, h, f"{p}.mlp.Wi", [Linear(f"{p}.mlp.Wi", 2 * ff, d, c.mlp_bias)])
        h = g.glu(h, f.config["ffn_activation"], f"{p}.mlp.act")
        x = layers.output(g, c, w, h, x, f"{p}.mlp.Wo", bias=c.mlp_bias)
    if c.label_row == "mean":
        x = g.select(norm(x, "model.final_norm"), mean=True)
    else:
        x = norm(g.select(x), "model.final_norm")
    if not c.labels:
        return layers.logits(g, c, w, x, table)
    x = classifier.dense(g, c, w, x, "head.dense", "gelu", bias=f.flag("classifier_bias"))
    return classifier.head(g, c, w, norm(x, "head.norm"), "classifier")
