"""The base of all operations: a name, the output value and the input values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.formats import PackedWeight
from sterna.graph.heads import LATER

__all__ = ["LATER", "InPlaceOp", "Op", "RoundingOp", "Route", "Value", "WeightOp"]


@dataclass(frozen=True, eq=False)
class Route:
    """Which of `experts` each token goes to, `chosen` of them, and in `shares` how much
    of each; None where their rows were multiplied already."""

    shares: Value | None
    experts: int
    chosen: int


@dataclass(eq=False)
class Value:
    """Activations: float32 [tokens, width], and int8 codes too if an integer layer reads them.

    starts: the columns where the results of several weights begin (`GraphBuilder.linear`); else
    (0,).
    route: if set, there is a row for each token and each of its experts.
    """

    width: int
    starts: tuple[int, ...] = (0,)
    op: Op | None = field(default=None, repr=False)  # whose own values would be printed as well
    route: Route | None = field(default=None, repr=False)


_OWN = Value(0)  # stands for the output that an operation makes itself


@dataclass(eq=False, kw_only=True)
class Op:
    """An operation. `kind` is the name that the core has for it.

    output: what it writes; by default the value that `own_output` returns.
    """

    kind: ClassVar[str]
    name: str  # for errors
    output: Value = _OWN
    selected: bool = False  # runs only on the rows whose logits are needed

    def __post_init__(self) -> None:
        """Make the output, unless it is given."""
        if self.output is _OWN:
            self.output = self.own_output()

    def own_output(self) -> Value:
        """Return a new output; as wide as the first input, if a class says nothing else."""
        return Value(self.inputs[0].width)

    @property
    def inputs(self) -> list[Value]:
        """The values that it reads, in the order of its fields."""
        # vars, not dataclasses.fields, and no isinstance: a model has hundreds of operations of
        # some 25 fields, each asked several times.
        return [v for name, v in vars(self).items() if type(v) is Value and name != "output"]

    @property
    def float_inputs(self) -> list[Value]:
        """Those of its inputs that it reads as floats."""
        return self.inputs

    @property
    def is_norm(self) -> bool:
        """Whether its output is normalised: a head reads the last such output."""
        return False

    @property
    def reused(self) -> Value | None:
        """An input whose buffer the output may take, if no later operation reads that input."""
        return None

    @property
    def in_place(self) -> bool:
        """Whether the output must take the buffer of `reused`."""
        return False


@dataclass(eq=False, kw_only=True)
class InPlaceOp(Op):
    """An operation that changes the rows of x: its output takes their buffer."""

    x: Value

    def own_output(self) -> Value:
        return Value(self.x.width, self.x.starts)

    @property
    def reused(self) -> Value | None:
        return self.x

    @property
    def in_place(self) -> bool:
        return True


class RoundingOp(Op):
    """An operation that may round its result to int8 for integer layers.

    rounding: as `Format.rounding`; None: not rounded. Its classes have the field.
    """

    rounding: int | None

    def rounds_as(self, rounding: int) -> bool:
        """Whether its result can have codes of this rounding."""
        return self.rounding in (None, rounding)


@dataclass(eq=False, kw_only=True)
class WeightOp(Op):
    """An operation that reads a packed weight."""

    weight: PackedWeight

    @property
    def n_weights(self) -> int:
        """Weights of the matrix, rows that only fill tiles left out."""
        return self.weight.M * self.weight.K

    @property
    def active(self) -> float:
        """The part of its weight that a token needs: its experts."""
        return 1.0
