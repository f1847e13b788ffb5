"""Qwen3-Next: Qwen3.5's graph with experts; recurrent layers store q, k, v, z as one matrix.

Its rows are those of each key head in turn, [q | k | v | z]; another matrix has [b | a]. GGUF files
have q, k and v of all heads as one matrix, z as another, and value heads in the checkpoint's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sterna.graph import GraphBuilder, Piece, RecurrentHeads, Value
from sterna.models import layers, moe, qwen3_5, qwen3_5_moe
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.delta_net import Row
from sterna.models.gguf_architecture import PREDICTING
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("Qwen3NextForCausalLM",)
ACTIVATION = qwen3_5.ACTIVATION
TERNARY = qwen3_5.TERNARY
DEFAULTS: dict[str, Any] = {
    **qwen3_5_moe.DEFAULTS, "vocab_size": 151936, "intermediate_size": 5632,
    "num_hidden_layers": 48, "num_experts_per_tok": 10, "num_experts": 512,
    "norm_topk_prob": True, "decoder_sparse_step": 1,
}  # fmt: skip
SKIPPED = qwen3_5.SKIPPED
_SPLIT = qwen3_5_moe.GGUF["qwen35moe"]
_NOT_HERE = (*PREDICTING, "linear_attn.in_proj_b", "linear_attn.in_proj_a")
GGUF = {
    "qwen3next": replace(
        _SPLIT,
        architecture=ARCHITECTURES[0],
        modules={
            **{name: to for name, to in _SPLIT.modules.items() if name not in _NOT_HERE},
            "linear_attn.in_proj_ba": "ssm_ba",
            "linear_attn.in_proj_qkvz": "ssm_in",  # of the first files, as checkpoints have it
        },
        tiles=False,
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return Qwen3.5's fields; refuse layers without experts."""
    f.supported("decoder_sparse_step", f.count("decoder_sparse_step"), 1)
    f.supported("mlp_only_layers", f.config.get("mlp_only_layers") or [], [])
    return qwen3_5_moe.complete(f)


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    shared = c.fields.count("shared_expert_intermediate_size")
    of_all = not c.fields.flag("norm_topk_prob")
    how = moe.ExpertFields.of(c.fields, "moe_intermediate_size", of_all=of_all, shared=shared)

    def ffn(g: GraphBuilder, h: Value, x: Value, name: str) -> Value:
        return moe.feed_forward(g, c, w, h, x, name, how)

    return qwen3_5.build(g, c, w, ffn, _projected)


def _projected(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, heads: RecurrentHeads,
    name: str,
) -> Row:  # fmt: skip
    each = heads.v_heads // heads.k_heads
    z = heads.width
    b = z + heads.v_width
    widths = {"qkv": z, "z": heads.v_width} if w.has(f"{name}.in_proj_qkv") else {"qkvz": b}
    widths["ba"] = 2 * heads.v_heads
    linears = [Linear(f"{name}.in_proj_{part}", M, c.hidden_size) for part, M in widths.items()]
    x, (first, *others, ba) = layers.linear_parts(g, c, w, h, f"{name}.in_proj", linears)
    if others:
        pieces = [Piece(z, begin=first), Piece(heads.v_width, begin=others[0], column=z)]
    else:
        parts = [heads.k_dim] * 2 + [each * heads.v_dim] * 2
        pieces = [*_of_key_heads(heads, first, parts, 0)]
    pieces += _of_key_heads(heads, ba, [each, each], b)
    width = b + 2 * heads.v_heads
    row = g.place(width, [(x, piece) for piece in pieces], f"{name}.in_proj")
    return row, z, b, b + heads.v_heads


def _of_key_heads(
    heads: RecurrentHeads, begin: int, widths: list[int], column: int
) -> Iterator[Piece]:
    """Yield a piece for each part of the key heads, so that a part's heads are adjacent."""
    stride = sum(widths)
    for width in widths:
        yield Piece(width, heads.k_heads, begin, stride, column, width)
        begin, column = begin + width, column + heads.k_heads * width
