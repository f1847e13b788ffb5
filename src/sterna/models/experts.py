"""FFNs of experts, of which each token takes a few: their fields of config.json, and their graph.

    y = sum over the chosen experts e of share_e down_e(act(gate_e) * up_e)

A router's logits choose; shares are their softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from sterna.graph import Graph, Route, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.models.fields import Fields
from sterna.weights.sources import Linear, WeightSource

__all__ = ["ExpertFields", "Names", "feed_forward"]

MAX_EXPERTS = 4096  # native kMaxExperts


@dataclass(frozen=True)
class ExpertFields:
    """How many experts a layer has, how many a token takes, and the width of one's FFN.

    of_all: the shares of a token's experts do not add up to 1, but with those of all others.
    """

    count: int
    chosen: int
    width: int
    of_all: bool = False

    @classmethod
    def of(cls, f: Fields, count: str, width: str, of_all: bool = False) -> ExpertFields:
        """Those of config.json; count, width: the names of fields. ModelFormatError."""
        experts = f.count(count, most=MAX_EXPERTS)
        chosen = f.count("num_experts_per_tok")
        if chosen > experts:
            f.fail("num_experts_per_tok", f"at most {count}={experts}", chosen)
        return cls(experts, chosen, f.count(width), of_all)


@dataclass(frozen=True)
class Names:
    """What a checkpoint calls the parts of a layer of experts; `{}` is an expert's number."""

    router: str = "gate"
    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"


def feed_forward(
    g: Graph, c: TransformerConfig, w: WeightSource, h: Value, x: Value | None, name: str,
    how: ExpertFields, names: Names = Names(),
) -> Value:  # fmt: skip
    """x + what its experts make of each row of h; `name` is the layer's."""
    route = choose(g, c, w, h, name, how, names)
    d, ff = c.hidden_size, how.width
    module = f"{name}.experts"
    rows = g.spread(h, route, f"{module}.spread")
    parts = [Linear(f"{name}.{part}", ff, d) for part in (names.gate, names.up)]
    gate_up = w.experts(f"{module}.gate_up_proj", parts, how.count)
    rows = g.linear(rows, gate_up, f"{module}.gate_up_proj")
    rows = g.glu(rows, c.activation, f"{module}.act")
    down = w.experts(f"{module}.down_proj", [Linear(f"{name}.{names.down}", d, ff)], how.count)
    rows = g.linear(rows, down, f"{module}.down_proj")
    return g.combine(rows, x, module)


def choose(
    g: Graph, c: TransformerConfig, w: WeightSource, h: Value, name: str, how: ExpertFields,
    names: Names,
) -> Route:  # fmt: skip
    """Each row's experts, by the logits of a router that stays as the checkpoint has it."""
    router = f"{name}.{names.router}"
    logits = layers.linear(
        g, c, w, h, router, [Linear(router, how.count, c.hidden_size, exact=True)]
    )
    return g.route(logits, how.chosen, router, how.of_all)
