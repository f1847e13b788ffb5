"""Mixture-of-experts FFNs: their fields of config.json and their graph.

    y = sum over the chosen experts e of share_e down_e(act(gate_e) * up_e)
      + sigmoid(shared_gate) down_s(act(gate_s) * up_s), where there is a shared expert

A router's logits choose a token's experts; shares are the softmax of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.graph import GraphBuilder, Route, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.weights.sources import STACKED, Linear, Stacking, WeightSource

__all__ = ["ExpertFields", "Names", "combined", "feed_forward"]

MAX_EXPERTS = 4096  # native kMaxExperts


@dataclass(frozen=True)
class ExpertFields:
    """Number of experts in a layer, number that a token uses, and width of one expert's FFN.

    of_all: whether the softmax is over all experts, so that chosen shares add up to less than 1.
    shared: width of an expert that all tokens use; 0: none.
    """

    count: int
    chosen: int
    width: int
    of_all: bool = False
    shared: int = 0

    @classmethod
    def of(cls, f: Fields, width: str, *, of_all: bool = False, shared: int = 0) -> ExpertFields:
        """Read them from config.json; width: the field with the width. ModelFormatError."""
        experts = f.count("num_experts", most=MAX_EXPERTS)
        chosen = f.count("num_experts_per_tok")
        if chosen > experts:
            f.fail("num_experts_per_tok", f"at most {f.name('num_experts')}={experts}", chosen)
        return cls(experts, chosen, f.count(width), of_all, shared)


@dataclass(frozen=True)
class Names:
    """Names of the parts of an MoE layer in a checkpoint; `{}` stands for an expert's number."""

    router: str = "gate"
    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"

    @property
    def gate_up(self) -> tuple[str, str]:
        """The names of gate and up, which run as one matrix."""
        return self.gate, self.up


NAMES = Names()


def feed_forward(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, x: Value, name: str,
    how: ExpertFields, *, names: Names = NAMES, bias: bool = False, stacking: Stacking = STACKED,
    activation: str = "", limit: float = 0.0,
) -> Value:  # fmt: skip
    """x + the experts' result for each row of h; `name` is the layer's.

    bias: of the router, and of each expert's layers. stacking: as in `WeightSource.experts`.
    activation, limit: as in `GraphBuilder.glu`, if they are not the model's.
    """
    d, router = c.hidden_size, f"{name}.{names.router}"
    # Both keep the checkpoint's type.
    parts = [Linear(router, how.count, d, bias, exact=True)]
    if how.shared:
        parts.append(Linear(f"{name}.{names.shared_gate}", 1, d, exact=True))
    logits, columns = layers.linear_parts(g, c, w, h, router, parts)
    route = g.route(logits, how.count, how.chosen, router, how.of_all)

    x = combined(
        g, c, w, h, x, route, name, how, names=names, bias=bias, stacking=stacking,
        activation=activation, limit=limit,
    )  # fmt: skip
    if not how.shared:
        return x

    module, ff = f"{name}.{names.shared}", how.shared
    two = [Linear(f"{module}.{part}_proj", ff, d) for part in ("gate", "up")]
    h = layers.linear(g, c, w, h, f"{module}.gate_up_proj", two)
    h = g.glu(h, c.activation, f"{module}.act")
    # A factor of a row passes through a linear layer.
    h = g.gated(h, logits, columns[1], ff, 1, "sigmoid", f"{module}.gate", single=True)
    return layers.output(g, c, w, h, x, f"{module}.down_proj")


def combined(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, x: Value | None, route: Route,
    name: str, how: ExpertFields, *, names: Names = NAMES, bias: bool = False,
    stacking: Stacking = STACKED, activation: str = "", limit: float = 0.0,
) -> Value:  # fmt: skip
    """Write (x +) the result of a route's experts for each row of h; else as `feed_forward`."""
    module = f"{name}.experts"
    rows = g.spread(h, route, f"{module}.spread")
    two = [Linear(f"{name}.{part}", how.width, c.hidden_size, bias) for part in names.gate_up]
    rows = _linear(g, w, rows, f"{module}.gate_up_proj", two, how.count, stacking)
    rows = g.glu(rows, activation or c.activation, f"{module}.act", limit)
    down = [Linear(f"{name}.{names.down}", c.hidden_size, how.width, bias)]
    rows = _linear(g, w, rows, f"{module}.down_proj", down, how.count, stacking)
    return g.combine(rows, x, module)


def _linear(
    g: GraphBuilder, w: WeightSource, rows: Value, name: str, parts: list[Linear], count: int,
    stacking: Stacking,
) -> Value:  # fmt: skip
    weights = w.experts(name, parts, count, stacking)
    bias = w.experts_bias(name, parts, count, stacking) if parts[0].bias else None
    return g.linear(rows, weights, name, bias=bias)
