"""Methods that compute within a row: norms, activations, gates and rotations."""

from __future__ import annotations

from sterna.graph.heads import F32, RecurrentHeads, Rotation
from sterna.graph.methods.base import Methods
from sterna.graph.ops import (
    ActivationOp,
    AltUpOp,
    CutoffOp,
    GatedOp,
    LayerNormOp,
    RescaleOp,
    RowwiseOp,
    Value,
)

__all__ = ["GLUS", "FunctionMethods"]

#: Activations of a rowwise operation, in the words of config.json.
GLUS = ("relu2", "silu", "gelu", "gelu_pytorch_tanh")


class FunctionMethods(Methods):
    """Methods that compute within a row: norms, activations, gates and rotations."""

    def norm(
        self,
        x: Value,
        weight: F32,
        eps: float,
        name: str,
        residual: Value | None = None,
        factor: float = 1.0,
    ) -> Value:
        """RMSNorm(x) * weight, or (RMSNorm(x) * weight + residual) * factor; without a residual,
        the norm is fused into the glu that made x, if that glu is the last operation.

        A row of n times as many values as the weight has is normalised in n parts.
        """
        made, parts = x.op, x.width // weight.size
        plain, last = residual is None and parts == 1, self.graph.ops[-1]
        if plain and made is last and isinstance(made, RowwiseOp) and made.is_bare_glu:
            made.name, made.norm, made.eps = name, weight, eps
            return x
        return self._add(
            RowwiseOp(
                name=name, output=Value(x.width), x=x, norm=weight, eps=eps, parts=parts,
                residual=residual, factor=1.0 if plain else factor,
            )
        )  # fmt: skip

    def add(self, x: Value, residual: Value, name: str) -> Value:
        """x + residual."""
        return self._add(RowwiseOp(name=name, output=Value(x.width), x=x, residual=residual))

    def layer_norm(self, x: Value, weight: F32, bias: F32 | None, eps: float, name: str) -> Value:
        """LayerNorm(x) * weight (+ bias)."""
        out = Value(x.width)
        return self._add(LayerNormOp(name=name, output=out, x=x, weight=weight, bias=bias, eps=eps))

    def activation(
        self, x: Value, activation: str, name: str, parameters: tuple[float, ...] = ()
    ) -> Value:
        """act(x): one of `GLUS`, "relu", "quick_gelu", "tanh", "clip" or "xielu".

        parameters: of "clip" the least and the most; of "xielu" alpha_p, alpha_n, beta and eps.
        Rows of experts have one of `GLUS`.
        """
        out = Value(x.width)
        if x.route is not None or (activation in GLUS and not parameters):
            return self._add(RowwiseOp(name=name, output=out, x=x, glu=activation, ungated=True))
        return self._add(
            ActivationOp(name=name, output=out, x=x, activation=activation, parameters=parameters)
        )

    def glu(
        self,
        gate_up: Value,
        activation: str,
        name: str,
        limit: float = 0.0,
        up: tuple[Value, int] | None = None,
    ) -> Value:
        """act(gate) * up of a row [gate | up]; activation: one of `GLUS`, or "clamped": gate
        sigmoid(1.702 gate) (up + 1).

        limit: of a clamped one, and of silu unless it is 0: the gate is at most that, up within it.

        up: where it stands in another row, from a column on; then the first row is the gate.
        """
        row, column = up or (None, 0)
        width = gate_up.width
        if row is None:
            column = gate_up.starts[1] if len(gate_up.starts) > 1 else width // 2
            width -= column
        return self._add(
            RowwiseOp(
                name=name, output=Value(width), x=gate_up, up=row, up_column=column,
                glu=activation, limit=limit,
            )
        )  # fmt: skip

    def gated(
        self, x: Value, gates: Value, column: int, stride: int, heads: int, activation: str,
        name: str, norm: F32 | None = None, eps: float = 0.0, k_heads: int | None = None,
        single: bool = False, first: bool = False,
    ) -> Value:  # fmt: skip
        """norm(x) act(gate) of each head: RMSNorm with a weight [features of a head], or one for
        all heads [width of x], or x itself.

        column: where the gate of the first head begins in `gates`; stride: from one head's gate to
        the next. activation: "silu" or "sigmoid". k_heads: if set, heads are tiled
        (`RecurrentHeads`) in both rows, and ordered by their key heads in the result. single: the
        features of a head share one gate. first: the gate comes first, norm(x act(gate)).
        """
        each = RecurrentHeads(k_heads or heads, heads, 1, x.width // heads, tiled=True)
        return self._add(
            GatedOp(
                name=name, output=Value(x.width), x=x, gates=gates, heads=each, column=column,
                stride=stride, activation=activation, norm=norm, eps=eps, single=single,
                first=first,
            )
        )  # fmt: skip

    def rotate(self, x: Value, rotation: Rotation, name: str, inverse: bool = False) -> Value:
        """Rotate x, or with `inverse` undo the rotation; x itself is unchanged."""
        out = Value(x.width)
        return self._add(RowwiseOp(name=name, output=out, x=x, rotation=rotation, inverse=inverse))

    def altup(
        self, x: Value, factors: Value, streams: int, active: int, name: str,
        made: Value | None = None,
    ) -> Value:  # fmt: skip
        """Mix the streams of a row (AltUp): each plus the sum of all of them times its factors.

        factors: [streams, streams], a stream's side by side. made: what a layer made of the stream
        `active`; then a stream is itself plus (1 + its factor) times what the layer changed, and
        factors are [streams].
        """
        out = Value(x.width)
        return self._add(
            AltUpOp(
                name=name, output=out, x=x, made=made, factors=factors, streams=streams,
                active=active,
            )
        )  # fmt: skip

    def rescale(
        self, x: Value, size_of: Value, name: str, *, column: int = 0, least: float = 1e-5,
        residual: Value | None = None,
    ) -> Value:  # fmt: skip
        """x * rms(size_of) / rms(x) (+ residual), of as many columns as size_of has, from `column`.

        least: the mean square that x is at least taken to have.
        """
        out = Value(size_of.width)
        return self._add(
            RescaleOp(
                name=name, output=out, x=x, size_of=size_of, column=column, least=least,
                residual=residual,
            )
        )  # fmt: skip

    def cutoff(self, x: Value, width: int, deviations: float, name: str) -> Value:
        """max(0, x - (mean + deviations * standard deviation)) of the first `width` columns of x.

        Read the result and not x afterwards.
        """
        out = Value(x.width, x.starts)
        return self._add(CutoffOp(name=name, output=out, x=x, width=width, deviations=deviations))
