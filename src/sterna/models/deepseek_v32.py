"""DeepSeek V3.2: DeepSeek V3's graph, whose attention is to chosen positions. arXiv 2512.02556.

In each layer an indexer gives every earlier position a score, from a key of its own in the cache,
and a position attends to the `index_topk` positions with the largest scores; up to so many, to all:

    score(t, s) = sum_h weight[t, h] * relu(rope(q)[t, h] . rope(k)[s])

q are of the latent of attention's q, k (with a LayerNorm) and the weights of the layer's input. The
published code rotates q and k by a Hadamard matrix and multiplies scores by constants, none of
which changes an order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from sterna.graph import LatentHeads, Piece, Value
from sterna.graph.ops import LayerNormOp
from sterna.models import deepseek_v3, latent_attention, llama, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.weights.sources import Linear

ARCHITECTURES = ("DeepseekV32ForCausalLM",)
DEFAULTS: dict[str, Any] = (
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
        keys={
            "attention.indexer.top_k": "index_topk",
            "attention.indexer.head_count": "index_n_heads",
            "attention.indexer.key_length": "index_head_dim",
        },
    )
}
ALIASES = deepseek_v3.ALIASES
SKIPPED = deepseek_v3.SKIPPED
MAX_INDEX_HEADS = 256  # native kMaxAttentionRows
NORM_EPS = 1e-6  # of the LayerNorm of the indexer's keys, whatever config.json says of norms


def complete(f: Fields) -> dict[str, Any]:
    """Return DeepSeek V3's fields and how many layers have no experts; check the indexer's."""
    f.count("q_lora_rank")
    f.count("index_topk")
    f.count("index_n_heads", most=MAX_INDEX_HEADS)
    rotated = f.count("qk_rope_head_dim", most=MAX_HEAD_DIM)
    features = f.count("index_head_dim", most=MAX_HEAD_DIM, least=rotated)
    if features % 2:
        f.fail("index_head_dim", "an even number", features)
    return {
        **deepseek_v3.complete(f.having({**f.config, "rope_interleave": True})),
        "first_k_dense_replace": moe.dense_first(f, 3),
        "layer_types": None,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attend = partial(latent_attention.attention, choose=_indexer)
    return llama.build(m, attend=attend, ffn=moe.deepseek_ffn(m.config.fields))


def _indexer(m: ModelBuilder, h: Value, latent: Value, layer: int, attention: str) -> Value:
    """Choose positions from the layer's input h and the normalised latent of q."""
    name, count = f"{attention}.indexer", m.config.fields.count
    heads, features, top_k = (count(f"index_{x}") for x in ("n_heads", "head_dim", "topk"))
    width = heads * features
    q = m.linear(latent, f"{name}.wq_b", width)
    parts = [
        Linear(f"{name}.wk", features, h.width),
        Linear(f"{name}.weights_proj", heads, h.width, exact=True),  # few, and decisive
    ]
    row, (k, column) = m.merged_linear(h, f"{name}.wk_weights", parts)
    own = m.graph.columns(row, features, f"{name}.k", k)
    weight, bias = (m.weights.vector(f"{name}.k_norm.{x}", features) for x in ("weight", "bias"))
    norm = f"{name}.k_norm"
    own = m.add(LayerNormOp(name=norm, x=own, weight=weight, bias=bias, eps=NORM_EPS))
    both = [(q, Piece(width)), (own, Piece(features, column=width))]
    x = m.graph.place(width + features, both, f"{name}.qk")
    rotary = m.config.attention[layer].rotary
    assert rotary is not None
    rotary = replace(rotary, interleaved=False)  # unlike attention's own
    key = LatentHeads(heads, 1, features, features)
    return m.graph.indexer(x, row, column, rotary, key, top_k, layer)
