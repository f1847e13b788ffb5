"""Qwen3-Next: Qwen3.5's graph with experts; recurrent layers store q, k, v, z as one matrix.

Its rows are those of each key head in turn, [q | k | v | z]; another matrix has [b | a]. GGUF files
have q, k and v of all heads as one matrix, z as another, and value heads in the checkpoint's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sterna.graph import Piece, RecurrentHeads, Value
from sterna.models import moe, qwen3_5, qwen3_5_moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.delta_net import Row
from sterna.models.gguf_architecture import PREDICTING
from sterna.weights.sources import Linear

ARCHITECTURES = ("Qwen3NextForCausalLM",)
DEFAULTS: dict[str, Any] = (
    qwen3_5_moe.DEFAULTS
    | {"vocab_size": 151936, "intermediate_size": 5632, "num_hidden_layers": 48}
    | {"num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": True}
    | {"decoder_sparse_step": 1}
)
SKIPPED = qwen3_5.SKIPPED
_SPLIT = qwen3_5_moe.GGUF["qwen35moe"]
_NOT_HERE = (*PREDICTING, "linear_attn.in_proj_b", "linear_attn.in_proj_a")
GGUF = {
    "qwen3next": replace(
        _SPLIT,
        architecture=ARCHITECTURES[0],
        modules={name: to for name, to in _SPLIT.modules.items() if name not in _NOT_HERE}
        | {"linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_qkvz": "ssm_in"},
        tiles=False,
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return Qwen3.5's fields; refuse layers without experts."""
    f.supported("decoder_sparse_step", f.count("decoder_sparse_step"), 1)
    f.supported("mlp_only_layers", f.config.get("mlp_only_layers") or [], [])
    return qwen3_5_moe.complete(f)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    shared, of_all = f.count("shared_expert_intermediate_size"), not f.flag("norm_topk_prob")
    experts = moe.ExpertFields.of(f, "moe_intermediate_size", of_all=of_all, shared=shared)
    return qwen3_5.build(m, moe.ffn(experts), _projected)


def _projected(m: ModelBuilder, h: Value, heads: RecurrentHeads, name: str) -> Row:
    each = heads.v_heads // heads.k_heads
    z = heads.width
    b = z + heads.v_width
    split = m.weights.has(f"{name}.in_proj_qkv")
    widths = {"qkv": z, "z": heads.v_width} if split else {"qkvz": b}
    widths["ba"] = 2 * heads.v_heads
    linears = [Linear(f"{name}.in_proj_{part}", M, h.width) for part, M in widths.items()]
    x, (first, *others, ba) = m.merged_linear(h, f"{name}.in_proj", linears)
    if others:
        pieces = [Piece(z, begin=first), Piece(heads.v_width, begin=others[0], column=z)]
    else:
        parts = [heads.k_dim] * 2 + [each * heads.v_dim] * 2
        pieces = [*_of_key_heads(heads, first, parts, 0)]
    pieces += _of_key_heads(heads, ba, [each, each], b)
    width = b + 2 * heads.v_heads
    row = m.graph.place(width, [(x, piece) for piece in pieces], f"{name}.in_proj")
    return row, z, b, b + heads.v_heads


def _of_key_heads(
    heads: RecurrentHeads, begin: int, widths: list[int], column: int
) -> Iterator[Piece]:
    """Yield a piece for each part of the key heads, so that a part's heads are adjacent."""
    stride = sum(widths)
    for width in widths:
        yield Piece(width, heads.k_heads, begin, stride, column, width)
        begin, column = begin + width, column + heads.k_heads * width
