"""Options of the layers that `ModelBuilder` adds: norms, attention, scalar factors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LLAMA_ATTENTION",
    "LLAMA_NORMS",
    "NO_FACTORS",
    "AttentionOptions",
    "Factors",
    "Norms",
    "QKNorm",
]


@dataclass(frozen=True)
class Norms:
    """The norms around the two sublayers of a layer, attention and FFN.

    pre, post: names of the norms of each sublayer's input and of its output; None: no norm.
    plus_one: norms multiply by 1 + weight instead of by weight.
    layer_norm: input norms and the model's last norm are LayerNorms; output norms stay RMSNorms.
    weight, bias: whether the LayerNorms have them.
    """

    pre: tuple[str | None, str | None] = ("input_layernorm", "post_attention_layernorm")
    post: tuple[str | None, str | None] = (None, None)
    plus_one: bool = False
    layer_norm: bool = False
    weight: bool = True
    bias: bool = True


@dataclass(frozen=True)
class QKNorm:
    """The RMSNorms of queries and keys.

    names: names of their modules in the checkpoint.
    weight: whether the norms have weights.
    whole: each norm covers all heads together instead of each head separately.
    after_rotation: the norms follow the rotary embedding instead of preceding it.
    plus_one: norms multiply by 1 + weight instead of by weight.
    """

    names: tuple[str, str] = ("q_norm", "k_norm")
    weight: bool = True
    whole: bool = False
    after_rotation: bool = False
    plus_one: bool = False


@dataclass(frozen=True)
class AttentionOptions:
    """How attention differs from Llama's.

    bias: q, k and v have biases.
    qk_norm: the norms of q and k. v_norm: v has an RMSNorm of each head, without a weight.
    scale, cap, slopes: as in `graph.Attention`. sinks: each query head has a sink, `sinks`.
    gated: rows of q_proj are [q | gate] of each head; sigmoid(gate) multiplies the head's output.
    names: names of the matrices of q, k and v in the checkpoint.
    stored: name of the single matrix that holds q, k and v in the checkpoint; empty: there are
    three. by_head: that matrix has q, k and v of each head (or group of query heads) together.
    keys_are_values: there is no v_proj; values are the keys before norms and rotation.
    clip: q, k and v are clipped to [-clip, clip]; 0: they are not.
    """

    bias: bool = False
    qk_norm: QKNorm | None = None
    v_norm: bool = False
    scale: float | None = None
    cap: float = 0.0
    slopes: tuple[float, ...] = ()
    sinks: bool = False
    gated: bool = False
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    stored: str = ""
    by_head: bool = False
    keys_are_values: bool = False
    clip: float = 0.0


@dataclass(frozen=True)
class Factors:
    """Factors of embeddings, of each sublayer's output and of logits.

    logits_cap: the cap of a soft cap of logits; 0: none.
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logits_cap: float = 0.0


LLAMA_NORMS, LLAMA_ATTENTION, NO_FACTORS = Norms(), AttentionOptions(), Factors()
