"""DeepSeek V3.2: DeepSeek V3's graph. arXiv 2512.02556.

An indexer of its own chooses the `index_topk` positions to which a position attends. Up to so many
positions that is all of them, so that the indexer has no effect; there a context ends here.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from sterna.models import deepseek_v3, moe
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.deepseek_v3 import build as build

ARCHITECTURES = ("DeepseekV32ForCausalLM",)
DEFAULTS = (
    without(deepseek_v3.DEFAULTS, "rope_interleave")
    | {"max_position_embeddings": 163840, "mlp_bias": False, "index_topk": 2048}
    | {"index_head_dim": 128, "index_n_heads": 64}
)
_OF_FILES = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}
_INDEXER = {f"self_attn.indexer.{name}": f"indexer.{to}" for name, to in _OF_FILES.items()}
_V3 = deepseek_v3.GGUF["deepseek2"]
GGUF = {
    "deepseek32": replace(
        _V3,
        architecture=ARCHITECTURES[0],
        modules={**_V3.modules, **_INDEXER},
        keys={"attention.indexer.top_k": "index_topk"},
    )
}
ALIASES = deepseek_v3.ALIASES
SKIPPED = deepseek_v3.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return DeepSeek V3's fields, how many layers have no experts, and a context's end."""
    most = f.count("index_topk")
    if most < f.count("max_position_embeddings"):
        warnings.warn(
            f"{f.file}: index_topk: a context ends after these {most} positions: Sterna does not "
            "run the indexer that chooses among more",
            RuntimeWarning,
            stacklevel=2,
        )
    return {
        **deepseek_v3.complete(f.having({**f.config, "rope_interleave": True})),
        "first_k_dense_replace": moe.dense_first(f, 3),
        "layer_types": None,
        "sliding_window": most,  # which bounds a context, without layer_types
    }


def unread(c: TransformerConfig) -> set[str]:
    """Return the indexer's modules."""
    return {f"model.layers.{i}.{module}" for i in range(c.n_layers) for module in _INDEXER}
