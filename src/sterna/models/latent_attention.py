"""Multi-head latent attention (DeepSeek V2, arXiv 2405.04434), in its absorbed form.

A position has one latent c = norm(kv_a) and one rotated key k, which all heads share; a head's keys
are [K c | k] and its values V c, with the rows [K; V] of kv_b. Since q (K c) = (K^T q) c, each
head's query becomes [rope(q) | K^T q], keys are [rope(k) | c], values are the c within them, and
each head's result is multiplied by V. So the cache holds the keys [rope(k) | c] only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sterna import _native
from sterna.graph import LatentHeads, Piece, Value
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.rope import scaling_kind
from sterna.weights.sources import Linear, OfHeads

__all__ = ["NORM_EPS", "Choose", "attention", "latent_fields"]

NORM_EPS = 1e-6  # of the norms within attention, whatever config.json says of the others
#: Chooses positions: (builder, norm(x), the normalised latent of q, the layer's number, attention's
#: name) -> what `GraphBuilder.attention` takes as `chosen`.
Choose = Callable[[ModelBuilder, Value, Value, int, str], Value]


def latent_fields(f: Fields) -> dict[str, Any]:
    """Return the sizes of keys [rope(k) | c] in the words of `TransformerConfig`; ModelFormatError.

    A family's `complete` returns them, too.
    """
    f.count("v_head_dim", most=MAX_HEAD_DIM)
    f.count("qk_nope_head_dim", most=MAX_HEAD_DIM)
    rotated = f.count("qk_rope_head_dim", most=MAX_HEAD_DIM)
    rank = f.count("kv_lora_rank", most=MAX_HEAD_DIM - rotated)
    for name, features in (("qk_rope_head_dim", rotated), ("kv_lora_rank", rank)):
        if features % 2:
            f.fail(name, "an even number, as rotations are of pairs", features)
    if f.config.get("q_lora_rank") is not None:
        f.count("q_lora_rank")
    heads = f.count("num_attention_heads")
    f.supported("num_key_value_heads", f.count("num_key_value_heads", heads), heads)
    return {"head_dim": rotated + rank, "rotary_dim": rotated, "partial_rotary_factor": None}


@dataclass(frozen=True)
class _Sizes:
    """Heads, and features of their parts; q_rank: 0 if q has no latent of its own."""

    heads: int
    plain: int  # features of q that are not rotated
    rotated: int
    values: int
    rank: int
    q_rank: int

    @classmethod
    def of(cls, c: TransformerConfig) -> _Sizes:
        count, config = c.fields.count, c.fields.config
        return cls(
            c.n_heads,
            count("qk_nope_head_dim"),
            count("qk_rope_head_dim"),
            count("v_head_dim"),
            count("kv_lora_rank"),
            0 if config.get("q_lora_rank") is None else count("q_lora_rank"),
        )

    @property
    def query(self) -> int:
        """Features of a head of q."""
        return self.plain + self.rotated

    @property
    def key(self) -> int:
        """Features of a key."""
        return self.rotated + self.rank


@dataclass(frozen=True)
class _Projections:
    """The rows q and kv_a, with the columns where the heads and the latent begin; q_latent: the
    normalised latent of q, None if it has none."""

    q: Value
    begin: int
    kv_a: Value
    latent: int
    q_latent: Value | None = None


def attention(
    m: ModelBuilder, h: Value, layer: int, name: str, choose: Choose | None = None
) -> Value:
    """Attention of layer `layer`, up to the output projection.

    choose: chooses the positions that a token attends to, where q has a latent; None: all.
    """
    s = _Sizes.of(m.config)
    p = _projections(m, h, name, s)
    q, begin, a, latent = p.q, p.begin, p.kv_a, p.latent
    chosen = choose(m, h, p.q_latent, layer, name) if choose and p.q_latent else None
    whole = OfHeads(module=f"{name}.kv_b_proj", rows_of_head=s.plain + s.values)
    plain = Piece(s.plain, s.heads, begin=begin, stride=s.query)
    rows = m.graph.head_rows(q, plain, f"{name}.q_rows")
    absorbed = _of_heads(
        m, rows, f"{name}.k_b_proj", s.rank, s.heads, replace(whole, transposed=True)
    )
    own = m.graph.norm(
        m.graph.columns(a, s.rank, f"{name}.kv_a", latent),
        m.weights.vector(f"{name}.kv_a_layernorm.weight", s.rank),
        NORM_EPS,
        f"{name}.kv_a_layernorm",
    )
    key, rope = s.heads * s.key, s.rotated
    row = m.graph.place(
        key + s.key,
        [
            (q, Piece(rope, s.heads, begin + s.plain, s.query, 0, s.key)),
            (absorbed, Piece(s.rank, s.heads, column=rope, to_stride=s.key)),
            (a, Piece(rope, begin=latent + s.rank, column=key)),
            (own, Piece(s.rank, column=key + rope)),
        ],
        f"{name}.qk",
    )
    how = replace(m.config.attention[layer], scale=_scale(m.config, s))
    heads = LatentHeads(s.heads, 1, s.key, s.rank)
    out = m.graph.attention(row, layer, how, heads=heads, chosen=chosen)
    rows = m.graph.head_rows(out, Piece(s.rank, s.heads, stride=s.rank), f"{name}.v_rows")
    values = _of_heads(
        m, rows, f"{name}.v_b_proj", s.values, s.heads, replace(whole, first=s.plain)
    )
    back = Piece(s.values, s.heads, to_stride=s.values)
    return m.graph.place(s.heads * s.values, [(values, back)], f"{name}.heads")


def _projections(m: ModelBuilder, h: Value, name: str, s: _Sizes) -> _Projections:
    d, bias, width = m.config.hidden_size, m.config.attention_bias, s.heads * s.query
    kv_a = Linear(f"{name}.kv_a_proj_with_mqa", s.key, d, bias)
    if not s.q_rank:
        q_proj = Linear(f"{name}.q_proj", width, d)
        if not bias:
            row, (begin, latent) = m.merged_linear(h, f"{name}.q_kv_a", [q_proj, kv_a])
            return _Projections(row, begin, row, latent)
        row = m.linear(h, q_proj.name, width)
        return _Projections(row, 0, m.linear(h, kv_a.name, s.key, bias=bias), 0)
    q_a = Linear(f"{name}.q_a_proj", s.q_rank, d, bias)
    a, (begin, latent) = m.merged_linear(h, f"{name}.q_kv_a", [q_a, kv_a])
    own = m.graph.columns(a, s.q_rank, f"{name}.q_a", begin)
    norm = m.weights.vector(f"{name}.q_a_layernorm.weight", s.q_rank)
    own = m.graph.norm(own, norm, NORM_EPS, f"{name}.q_a_layernorm")
    return _Projections(m.linear(own, f"{name}.q_b_proj", width), 0, a, latent, own)


def _of_heads(m: ModelBuilder, rows: Value, name: str, M: int, heads: int, place: OfHeads) -> Value:
    """Multiply each head's row by its own matrix [M, K]."""
    parts = [Linear(f"{name}.{{}}", M, rows.width)]
    return m.graph.linear(rows, m.weights.experts(name, parts, heads, place), name)


def _scale(c: TransformerConfig, s: _Sizes) -> float:
    """Return the factor of scores; an extended context has one of its own in it."""
    scale: float = s.query**-0.5
    parameters = c.fields.having(c.fields.mapping("rope_parameters"))
    all_dim = parameters.config.get("mscale_all_dim")
    if scaling_kind(parameters.config) == "default" or not all_dim:
        return scale
    factor, mscale = parameters.number("factor"), parameters.number("mscale_all_dim")
    more = 0.1 * mscale * _native.log(factor) + 1.0 if factor > 1 else 1.0
    return scale * more * more
