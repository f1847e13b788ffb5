"""Mixtral: Mistral's graph, whose FFNs are experts. arXiv 2401.04088.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x))

The shares of a token's two experts add up to 1.
"""

from __future__ import annotations

from sterna.graph import GraphBuilder, Value
from sterna.models import llama, moe
from sterna.models.config import TransformerConfig
from sterna.models.mistral import complete as complete
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("MixtralForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
#: A checkpoint's names of the parts of a layer of experts.
NAMES = moe.Names("gate", "experts.{}.w1", "experts.{}.w3", "experts.{}.w2")


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    how = moe.ExpertFields.of(c.fields, "intermediate_size")

    def ffn(h: Value, x: Value, layer: int, _: str) -> Value:
        name = f"model.layers.{layer}.block_sparse_moe"
        return moe.feed_forward(g, c, w, h, x, name, how, names=NAMES)

    return llama.build(g, c, w, ffn=ffn)
