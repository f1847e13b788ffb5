"""MTP layers: one more layer, which predicts the token after the next one.

For each token n but the first, with h the head's input for a token (vLLM's qwen3_5_mtp.py,
llama.cpp's nextn tensors):

    x = fc([norm(embedding of token n) | norm(h of token n - 1)])
    x = x + attention(norm(x)); x = x + FFN(norm(x)); h' = norm(x)

The model's own head predicts the token after n from h'. With h' instead of h, the layer predicts
one token further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sterna.graph import Graph, GraphBuilder, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

__all__ = ["FeedForward", "build", "is_there"]

LAYER = "mtp.layers.0"
#: The second half of a layer: (graph, norm(x), x, the FFN's name) -> the next x.
FeedForward = Callable[[GraphBuilder, Value, Value, str], Value]


def is_there(c: TransformerConfig, w: WeightSource) -> bool:
    """Whether there is an MTP layer that Sterna runs.

    It uses the model's own embedding and head, and its weights are not folded.
    """
    own = c.fields.flag("mtp_use_dedicated_embeddings")
    # The field is absent in files of some trainers and in GGUF. Several layers are not supported.
    single = c.fields.config.get("mtp_num_hidden_layers", 1) == 1
    return single and not own and c.hadamard is None and w.has("mtp.fc")


def build(model: Graph, c: TransformerConfig, w: WeightSource, ffn: FeedForward) -> Graph:
    """Build the MTP layer of a model with the graph `model`."""
    c = replace(c, attention=(*c.attention, c.attention[-1]))
    g, width, head = GraphBuilder(c.heads), c.hidden_size, model.head
    table = model.table

    def norm(x: Value, name: str) -> Value:
        return layers.norm(g, c, w, x, name, plus_one=True)

    e = norm(g.embed(table), "mtp.pre_fc_norm_embedding")
    h = norm(g.previous_hidden_states(width), "mtp.pre_fc_norm_hidden")
    fc = Linear("mtp.fc", width, 2 * width)
    x = layers.linear(g, c, w, g.concatenate([e, h]), fc.name, [fc])
    h = layers.attention(
        g, c, w, norm(x, f"{LAYER}.input_layernorm"), c.n_layers, f"{LAYER}.self_attn",
        layers.AttentionOptions(
            bias=c.attention_bias, qk_norm=layers.HeadNorms(plus_one=True), gated=True
        ),
    )  # fmt: skip
    x = layers.output(g, c, w, h, x, f"{LAYER}.self_attn.o_proj", bias=c.attention_bias)
    if any(w.has(f"{LAYER}.mlp.{part}") for part in ("down_proj", "gate")):  # small models lack it
        x = ffn(g, norm(x, f"{LAYER}.post_attention_layernorm"), x, f"{LAYER}.mlp")
    last = layers.norm_weight(w, "mtp.norm", width, plus_one=True)
    g.hidden_states(x, last, c.rms_norm_eps, "mtp.norm")
    x = g.norm(g.select(x), last, c.rms_norm_eps, "mtp.norm")
    g.head(x, head.weight, head.shadow, "lm_head")
    return g.graph
