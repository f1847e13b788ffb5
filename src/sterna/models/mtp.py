"""MTP layers: one more layer, which predicts the token after the next one.

For each token n but the first, with h the head's input for a token (vLLM's qwen3_5_mtp.py,
llama.cpp's nextn tensors):

    x = fc([norm(embedding of token n) | norm(h of token n - 1)])
    x = x + attention(norm(x)); x = x + FFN(norm(x)); h' = norm(x)

The model's own head predicts the token after n from h'. With h' instead of h, the layer predicts
one token further.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sterna.graph import Graph, GraphBuilder, Value
from sterna.graph.ops import CopyOp, EmbedOp, HiddenStatesOp
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.options import AttentionOptions, QKNorm
from sterna.weights.sources import WeightSource

__all__ = ["build", "is_there"]

LAYER = "mtp.layers.0"


def is_there(c: TransformerConfig, w: WeightSource) -> bool:
    """Whether there is an MTP layer that Sterna runs.

    It uses the model's own embedding and head, and its weights are not folded.
    """
    own = c.fields.flag("mtp_use_dedicated_embeddings")
    # The field is absent in files of some trainers and in GGUF. Several layers are not supported.
    single = c.fields.config.get("mtp_num_hidden_layers", 1) == 1
    return single and not own and c.hadamard is None and w.has("mtp.fc")


def build(model: ModelBuilder, ffn: FeedForward) -> Graph:
    """Return the graph of the MTP layer of the model that `model` has built."""
    c, head = model.config, model.graph.graph.head
    attention = (*c.attention, c.attention[-1])
    m = replace(model, graph=GraphBuilder(c.heads)).with_config(attention=attention)
    norm = partial(m.norm, plus_one=True)
    e = norm(m.add(EmbedOp(weight=model.graph.graph.table)), "mtp.pre_fc_norm_embedding")
    h = norm(
        m.add(CopyOp(name="previous_hidden_states", output=Value(c.hidden_size), x=None)),
        "mtp.pre_fc_norm_hidden",
    )
    x = m.linear(m.graph.concatenate([e, h]), "mtp.fc", c.hidden_size)
    h = norm(x, f"{LAYER}.input_layernorm")
    options = AttentionOptions(c.attention_bias, QKNorm(plus_one=True), gated=True)
    h = m.attention(h, c.n_layers, f"{LAYER}.self_attn", options)
    x = m.output(h, x, f"{LAYER}.self_attn.o_proj", bias=c.attention_bias)
    has_ffn = any(m.weights.has(f"{LAYER}.mlp.{part}") for part in ("down_proj", "gate"))
    if has_ffn:  # small models have none
        h = norm(x, f"{LAYER}.post_attention_layernorm")
        x = ffn(m, h, x, c.n_layers, f"{LAYER}.mlp")
    last = m.norm_weight("mtp.norm", c.hidden_size, plus_one=True)
    m.add(HiddenStatesOp(name="mtp.norm", x=x, norm=last, eps=c.rms_norm_eps))
    x = m.graph.norm(m.select(x), last, c.rms_norm_eps, "mtp.norm")
    m.graph.head(x, head.weight, head.shadow, "lm_head")
    return m.graph.graph
