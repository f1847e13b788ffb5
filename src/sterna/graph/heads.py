"""Heads, rotations, windows and scores of experts: how layers of a model attend, recur, rotate and
choose, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = [
    "F32",
    "LATER",
    "ROW_BLOCK",
    "SOFTMAX",
    "Attention",
    "Heads",
    "LatentHeads",
    "Piece",
    "RecurrentHeads",
    "Rotary",
    "Rotation",
    "Scoring",
    "gate_heads",
]

F32 = npt.NDArray[np.float32]
#: Metadata of a field that was added when models had digests already: its default has no part in
#: them.
LATER = {"later": True}
ROW_BLOCK = 16  # columns are written, and heads padded, in multiples of it (native kRowBlock)


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of the first 2 * len(inverse_frequencies) values of each head.

    interleaved: it rotates values 2i and 2i + 1 together, else i and i + len(inverse_frequencies).
    factor: multiplies cosines and sines. long: the frequencies of an engine whose sequences may
    have more than `short_context` positions, if these differ. They cannot depend on the present
    length of a sequence, since cached keys would have to be rotated again. axes: for each
    frequency, which of a token's three coordinates it rotates by (`StepInput.coordinates`); (): by
    the token's position, as in steps without coordinates.
    """

    inverse_frequencies: tuple[float, ...]
    interleaved: bool = False
    factor: float = 1.0
    long: tuple[float, ...] = ()
    short_context: int = 0
    axes: tuple[int, ...] = field(default=(), metadata=LATER)

    def of_context(self, context: int) -> tuple[float, ...]:
        """Return the inverse frequencies of sequences of up to `context` positions."""
        return self.long if self.long and context > self.short_context else self.inverse_frequencies


@dataclass(frozen=True)
class Attention:
    """How a layer attends.

    rotary: the rotations of its queries and keys; None: none.
    window: the number of last positions that a position attends to, itself included, and with
    `bidirectional` of the next ones; None: all.
    scale: the factor of scores; None: head_dim^-1/2. cap: scores become cap * tanh(score / cap); 0:
    not.
    sinks: for each query head one further score, unscaled, of a position without a value: it takes
    a share of the weights and adds nothing; (): none.
    growth: (a, p): queries at position i are multiplied by 1 + a log(1 + floor(i / p)); (): not.
    slopes: for each query head what each position between a query and a key takes from their score,
    after scale and cap (ALiBi, arXiv 2108.12409); at least 0; (): nothing.
    bidirectional: as in an encoder, a position attends to its whole sequence, which one step
    computes. causal: tokens of an image do not attend to later ones, although they do in other
    layers. windowed: in an encoder, a position attends only to its window (`Part.windowed`).
    """

    rotary: Rotary | None
    window: int | None = None
    scale: float | None = None
    cap: float = 0.0
    sinks: tuple[float, ...] = ()
    growth: tuple[float, ...] = field(default=(), metadata=LATER)
    bidirectional: bool = field(default=False, metadata=LATER)
    causal: bool = field(default=False, metadata=LATER)
    slopes: tuple[float, ...] = field(default=(), metadata=LATER)
    windowed: bool = field(default=False, metadata=LATER)


@dataclass(frozen=True, eq=False)
class Rotation:
    """x -> H(signs * x) / sqrt(block) in blocks of x, H the Hadamard matrix of a power of two.

    It spreads outliers of a layer's inputs. Products do not change if weights are multiplied by the
    inverse. signs: float32 [width] of 1 and -1, None: all 1.
    """

    block: int
    signs: F32 | None = None


@dataclass(frozen=True)
class Heads:
    """The heads of all layers, as the KV cache has them."""

    n_heads: int
    n_kv_heads: int
    head_dim: int

    @property
    def padded_head(self) -> int:
        """head_dim padded to a multiple of 16, for the attention kernels and the KV cache."""
        return -(-self.head_dim // ROW_BLOCK) * ROW_BLOCK

    @property
    def outputs(self) -> int:
        """Features of a head's result."""
        return self.head_dim

    @property
    def stored(self) -> int:
        """The vectors that the cache keeps for a KV head and a position: a key and a value."""
        return 2


@dataclass(frozen=True)
class LatentHeads(Heads):
    """Heads whose keys are also their values: the last `value_dim` features of a key.

    The cache keeps only the keys.
    """

    value_dim: int

    @property
    def outputs(self) -> int:
        return self.value_dim

    @property
    def stored(self) -> int:
        return 1


@dataclass(frozen=True)
class Piece:
    """Columns of a value for `GraphBuilder.place`: `count` pieces of `width` features each.

    Piece i begins at begin + i * stride, and goes to column + i * to_stride. If x has rows of
    heads, it begins at `begin` of head i's row.
    """

    width: int
    count: int = 1
    begin: int = 0
    stride: int = 0
    column: int = 0
    to_stride: int = 0


@dataclass(frozen=True)
class RecurrentHeads:
    """The heads of a recurrent layer, whose rows are [q | k | v].

    Value head i has the queries and keys of head i // (v_heads / k_heads), or where they are tiled,
    as GGUF files have them, of head i % k_heads.
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    tiled: bool = False

    @property
    def v_width(self) -> int:
        """Features of all value heads."""
        return self.v_heads * self.v_dim

    @property
    def width(self) -> int:
        """Features of a row [q | k | v]."""
        return 2 * self.k_heads * self.k_dim + self.v_width


def gate_heads(width: int, heads: int, k_heads: int | None = None) -> RecurrentHeads:
    """Return the heads of a row for `GatedOp`.

    k_heads: if set, heads are tiled (`RecurrentHeads`) in both rows of the operation, and ordered
    by their key heads in its output.
    """
    return RecurrentHeads(k_heads or heads, heads, 1, width // heads, tiled=True)


@dataclass(frozen=True)
class Scoring:
    """How a router's logits become scores, and how experts are chosen and weighted by them.

    function: "softmax", of all experts; "sigmoid"; or "sparsemixer" (Phi-MoE, arXiv 2409.12136): an
    expert's share is its part of a softmax over the experts ranked after it by logits,
    that lie within `within` of its own: (largest - logit) / max(|logit|, largest) <= within.
    bias: a number for each expert, added to its score to choose experts, not in shares; (): none.
    groups: the number of groups of experts, of which `chosen_groups` may be used, those with the
    largest sum of their `best` (1 or 2) largest scores with their biases.
    scale: a factor of all shares. added, least: where shares are divided by the sum of the chosen
    scores, the divisor is max(sum + added, least).
    """

    function: str = "softmax"
    bias: tuple[float, ...] = ()
    groups: int = 1
    chosen_groups: int = 1
    best: int = 1
    scale: float = 1.0
    added: float = 0.0
    least: float = 0.0
    within: float = 0.0


SOFTMAX = Scoring()
