"""Qwen3.5 and 3.6 with experts: Qwen3.5's graph, whose FFNs are experts.

A token uses a few experts, whose shares add up to 1, and one that all tokens use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Graph, Value
from sterna.models import moe, qwen3_5
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import EXPERTS, GATED_SHARED
from sterna.models.vision.qwen3_vl import tower as tower

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
DEFAULTS: dict[str, Any] = (
    without(qwen3_5.DEFAULTS, "intermediate_size")
    | {"hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2}
    | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
    | {"num_experts_per_tok": 8, "num_experts": 256}
)
_DENSE = qwen3_5.GGUF["qwen35"]
_FFN = EXPERTS | GATED_SHARED
GGUF = {
    "qwen35moe": replace(
        _DENSE,
        architecture=ARCHITECTURES[0],
        modules={k: v for k, v in _DENSE.modules.items() if not k.startswith("mlp.")} | _FFN,
        keys={"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        experts="moe_intermediate_size",
    )
}
PREFIXES, TOWER = qwen3_5.PREFIXES, qwen3_5.TOWER
SKIPPED = qwen3_5.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of the dense models, and the width of an expert for all layers."""
    fields = qwen3_5.complete(f)
    text = f.having({**f.config, **fields})
    return {**fields, "intermediate_size": text.count("moe_intermediate_size")}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return qwen3_5.build(m, _experts(m.config.fields))


def predictor(m: ModelBuilder) -> Graph | None:
    """Return the graph of the MTP layer of the model that `m` has built; None: it has none."""
    return qwen3_5.predictor(m, _experts(m.config.fields))


def _experts(f: Fields) -> FeedForward:
    shared = f.count("shared_expert_intermediate_size")
    return moe.ffn(moe.ExpertFields.of(f, "moe_intermediate_size", shared=shared))
