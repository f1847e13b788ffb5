"""What a graph consists of: values, and the operations that make them of others."""

from __future__ import annotations

from dataclasses import dataclass, field

from sterna.formats import Experts, PackedWeight, Shadow
from sterna.graph.heads import F32, Attention, Heads, RecurrentHeads, Rotation

__all__ = ["Adapted", "Op", "Part", "Route", "Value"]


@dataclass(frozen=True, eq=False)
class Route:
    """Which of `experts` each token goes to, `chosen` of them, and in `shares` how much of each."""

    shares: Value
    experts: int
    chosen: int


@dataclass(eq=False)
class Value:
    """Activations: float32 [tokens, width], and int8 beside them if an integer layer reads them.

    starts: the columns where the results of several weights begin (`Graph.linear`), else (0,).
    route: where it is not None there is a row for each token and each of its experts.
    """

    width: int
    starts: tuple[int, ...] = (0,)
    op: Op | None = field(default=None, repr=False)  # whose own values would be printed as well
    route: Route | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Part:
    """A linear layer by the name that a checkpoint has for it, [M, K], and the column of a row
    where its results begin."""

    name: str
    M: int
    K: int
    column: int


@dataclass(frozen=True, eq=False)
class Adapted:
    """Linear layers that share an input, to whose results adapters may add, times the factor."""

    x: Value
    parts: tuple[Part, ...]
    factor: float


@dataclass(eq=False)
class Op:
    """One operation; `kind` says which of the fields it has."""

    kind: str
    name: str
    inputs: list[Value]
    output: Value
    weight: PackedWeight | None = None
    shadow: Shadow | None = None
    residual: Value | None = None
    column: int = 0  # of the output of a linear layer or copy, where this result goes
    bias: F32 | None = None
    norm: F32 | None = None
    k_norm: F32 | None = None  # rope: `norm` is q's
    v_norm: F32 | None = None
    heads: Heads | None = None  # rope, attention
    stores: bool = True  # rope: keys and values; else the row is of q alone
    keys_are_values: bool = False  # rope: the row is [q | k]
    eps: float = 0.0
    glu: str = ""
    up: int = 0  # the column where a glu's second half begins, of the last input
    parts: int = 1  # rowwise: of a row, each normalised by itself
    limit: float = 0.0  # of a clamped glu
    rotation: Rotation | None = None  # rowwise
    inverse: bool = False  # of the rotation
    rounding: int | None = None  # to int8, for integer layers: Format.rounding
    selected: bool = False
    layer: int = 0
    attention: Attention | None = None  # rope, attention
    gated: bool = False  # rope: gates of the heads of q stand between these
    norms_last: bool = False  # rope: after the rotation
    recurrent: RecurrentHeads | None = None  # recurrence; gated: its value heads
    a: int = 0  # recurrence: the columns of both gates
    b: int = 0
    taps: F32 | None = None  # conv [width, channels]
    rate: F32 | None = None  # recurrence, beside `bias`
    stride: int = 0  # gated: from a gate, the first of them at `column`, to the next
    activation: str = ""
    single: bool = False  # gated: a head has one gate
    #: Of the result; embed, linear: before a residual is added, rowwise: after it.
    factor: float = 1.0
    cap: float = 0.0  # linear: as `Attention.cap`, of the result
    route: Route | None = None  # route; of what runs on rows of experts or reads them
    expert_rows: int = 0  # linear: of the weight of each expert
    spread: bool = False  # rowwise: a row of a token goes to each of its experts
    of_all: bool = False  # route: shares add up to 1 over all experts
    factors: F32 | None = None  # route: of each expert's shares
    #: linear: the layers that are whole once this one has run, and may have adapters.
    adapted: Adapted | None = None

    @property
    def reads(self) -> list[Value]:
        """Its inputs, and what adapters read of the layers that it ends."""
        return self.inputs if self.adapted is None else [*self.inputs, self.adapted.x]

    @property
    def one_weight(self) -> PackedWeight:
        """What one call of a kernel reads: the weight, or an expert's part."""
        assert self.weight is not None
        if self.route is None:
            return self.weight
        return Experts(self.weight, self.route.experts, self.expert_rows)[0]

    @property
    def n_weights(self) -> int:
        """Weights of the matrix, rows that only fill tiles left out."""
        assert self.weight is not None
        rows = self.expert_rows * self.route.experts if self.route else self.weight.M
        return rows * self.weight.K

    @property
    def active(self) -> float:
        """The part of its weight that a token needs: that of its experts."""
        return self.route.chosen / self.route.experts if self.route else 1.0
