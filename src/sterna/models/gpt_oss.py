"""gpt-oss: experts, whose attention has sinks, and a window in every other layer. arXiv 2508.10925.

    x = x + o(attention(rope(q, k), v));   x = x + experts(norm(x))
    an expert's FFN: down(gate sigmoid(1.702 gate) (up + 1)), of a gate and an up that are clamped

All linear layers have biases, the router as well. The shares of a token's experts add up to 1.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import llama, moe
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.layers import AttentionOptions
from sterna.weights.sources import Stacking, WeightSource

ARCHITECTURES = ("GptOssForCausalLM",)
ACTIVATION = "silu"  # what config.json calls it
TERNARY = False  # float tensors of linear layers are the weights themselves
KV_DTYPE = "f16"  # keys have biases
YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
NAMES = moe.Names(router="router")
#: Floats lie transposed; a row of gate is followed by one of up.
STACKING = Stacking(transposed=True, alternating=True)


def complete(f: Fields) -> dict[str, Any]:
    """Return the layers' windows and the rotations, if the file says nothing of them."""
    f.supported("swiglu_alpha", f.number("swiglu_alpha"), 1.702)
    found: dict[str, Any] = {}
    if f.config.get("layer_types") is None:
        found["layer_types"] = [FULL if i % 2 else SLIDING for i in range(f.n_layers)]
    if not f.mapping("rope_parameters"):
        found["rope_parameters"] = YARN
    return found


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    how = moe.ExpertFields.of(c.fields, "intermediate_size")
    limit = c.fields.factor("swiglu_limit")

    def ffn(h: Value, x: Value, _: int, name: str) -> Value:
        return moe.feed_forward(
            g, c, w, h, x, name, how, names=NAMES, bias=True, stacking=STACKING,
            activation="clamped", limit=limit,
        )  # fmt: skip

    return llama.build(g, c, w, attention=AttentionOptions(sinks=True), ffn=ffn)
