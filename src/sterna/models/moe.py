"""Mixture-of-experts FFNs: their fields of config.json and their graph.

    y = sum over the chosen experts e of share_e down_e(act(gate_e) * up_e)
      + down_s(act(gate_s) * up_s), where there is a shared expert; times sigmoid(shared_gate),
        where it has a gate

A router's logits choose a token's experts, and become their shares (`Scoring`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sterna.graph import Route, Scoring, Value
from sterna.graph.heads import gate_heads
from sterna.graph.ops import GatedOp
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config_fields import Fields
from sterna.weights.sources import STACKED, Linear, Stacking

__all__ = [
    "ALIASES",
    "DEEPSEEK_NAMES",
    "SKIPPED",
    "ExpertFields",
    "Names",
    "combined",
    "deepseek_ffn",
    "dense_first",
    "feed_forward",
    "ffn",
    "optional_count",
    "routed",
]

MAX_EXPERTS = 4096  # native kMaxExperts
#: DeepSeek's name of a field, which other families took over.
ALIASES = {"n_routed_experts": "num_experts"}
#: Layers that predict several tokens, whose numbers follow the others'.
SKIPPED = {"model.layers.{num_hidden_layers}.": "a layer that predicts several tokens (MTP)"}


@dataclass(frozen=True)
class ExpertFields:
    """Number of experts in a layer, number that a token uses, and width of one expert's FFN.

    of_all, scoring: as in `GraphBuilder.route`; the bias of scores is read with the router.
    shared: width of an expert that all tokens use; 0: none.
    scales_inputs: shares multiply the experts' inputs instead of their outputs.
    dense: the layers that have a dense FFN instead of experts.
    """

    count: int
    chosen: int
    width: int
    of_all: bool = False
    shared: int = 0
    scoring: Scoring = field(default_factory=Scoring)
    scales_inputs: bool = False
    dense: frozenset[int] = frozenset()

    @classmethod
    def of(cls, f: Fields, width: str, *, of_all: bool = False, shared: int = 0) -> ExpertFields:
        """Read them from config.json; width: the field with the width. ModelFormatError."""
        experts = f.count("num_experts", most=MAX_EXPERTS)
        chosen = f.count("num_experts_per_tok")
        if chosen > experts:
            f.fail("num_experts_per_tok", f"at most {f.name('num_experts')}={experts}", chosen)
        return cls(experts, chosen, f.count(width), of_all, shared)

    @classmethod
    def of_deepseek(cls, f: Fields) -> ExpertFields:
        """Read DeepSeek V3's fields: sigmoids, of which a bias and groups choose."""
        experts = cls.of(f, "moe_intermediate_size")
        groups = optional_count(f, "n_group", experts.count) or 1
        if experts.count % groups:
            f.fail("n_group", f"a divisor of {f.name('num_experts')}={experts.count}", groups)
        each = experts.count // groups
        groups_chosen = optional_count(f, "topk_group", groups) or 1
        if experts.chosen > groups_chosen * each:
            rule = f"groups of {each} experts that have num_experts_per_tok={experts.chosen}"
            f.fail("topk_group", rule, groups_chosen)
        if groups > 1 and each < 2:
            f.fail("n_group", "groups of 2 experts or more", groups)
        return replace(
            experts,
            of_all=not f.flag("norm_topk_prob"),
            shared=experts.width * optional_count(f, "n_shared_experts"),
            scoring=Scoring(
                "sigmoid",
                groups=groups,
                chosen_groups=groups_chosen,
                best=min(groups, 2),
                scale=f.factor("routed_scaling_factor"),
                added=1e-20,
            ),
            dense=frozenset(range(optional_count(f, "first_k_dense_replace", f.n_layers))),
        )


def dense_first(f: Fields, default: int) -> int:
    """Return how many of the first layers have a dense FFN, by mlp_layer_types, which transformers
    saves, or by first_k_dense_replace; default: where the file has neither."""
    kinds = f.items("mlp_layer_types", f.n_layers, ("dense", "sparse"))
    if kinds is None:
        dense = f.config.get("first_k_dense_replace", default)
        return 0 if dense in (None, 0) else f.having({"dense": dense}).count("dense")
    dense_count = kinds.count("dense")
    if kinds[:dense_count] != ["dense"] * dense_count:
        f.fail("mlp_layer_types", "dense layers first", ", ".join(kinds[:dense_count]))
    return dense_count


def optional_count(f: Fields, name: str, most: int = MAX_EXPERTS) -> int:
    """Return a count that may be null or 0."""
    return 0 if f.config.get(name) in (None, 0) else f.count(name, most=most)


@dataclass(frozen=True)
class Names:
    """Names of the parts of an MoE layer in a checkpoint; `{}` is replaced by an expert's number.

    An empty gate, bias (the correction bias of scores) or shared_gate: there is none.
    bias_is_row: the bias is stored as [1, experts].
    stacked: names of the tensors that have gate and up, and down, of all experts.
    """

    router: str = "gate"
    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"
    bias: str = ""
    bias_is_row: bool = False
    stacked: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj")

    @property
    def gate_up(self) -> tuple[str, ...]:
        """The names of gate and up, which run as one matrix; of up only, if there is no gate."""
        return (self.gate, self.up) if self.gate else (self.up,)


NAMES = Names()
#: Of DeepSeek V3 and those that took them over.
DEEPSEEK_NAMES = Names(shared="shared_experts", shared_gate="", bias="gate.e_score_correction_bias")


def ffn(
    experts: ExpertFields,
    *,
    names: Names = NAMES,
    module: str = "",
    bias: bool = False,
    stacking: Stacking = STACKED,
    activation: str = "",
    limit: float = 0.0,
    factor: float = 1.0,
) -> FeedForward:
    """Return an FFN sublayer of experts; in the layers `experts.dense`, it is Llama's FFN.

    module: its name in a layer, if it is not Llama's. Other arguments are as in `feed_forward`.
    """

    def add(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
        name = f"model.layers.{layer}.{module}" if module else name
        if layer in experts.dense:
            return m.feed_forward(h, x, name, factor=factor)
        return feed_forward(
            m,
            h,
            x,
            name,
            experts,
            names=names,
            bias=bias,
            stacking=stacking,
            activation=activation,
            limit=limit,
            factor=factor,
        )

    return add


def deepseek_ffn(f: Fields) -> FeedForward:
    """Return an FFN sublayer with DeepSeek V3's fields and names."""
    return ffn(ExpertFields.of_deepseek(f), names=DEEPSEEK_NAMES)


def feed_forward(
    m: ModelBuilder,
    h: Value,
    x: Value,
    name: str,
    experts: ExpertFields,
    *,
    names: Names = NAMES,
    bias: bool = False,
    stacking: Stacking = STACKED,
    activation: str = "",
    limit: float = 0.0,
    factor: float = 1.0,
) -> Value:
    """x + factor * the experts' output for each row of h; `name` is the layer's.

    bias: the router and the experts' layers have biases. stacking: as in `WeightSource.experts`.
    activation, limit: as in `GraphBuilder.glu`; empty: the model's activation.
    """
    route, logits, columns = routed(m, h, name, experts, names, bias=bias, factor=factor)
    x = combined(
        m,
        h,
        x,
        route,
        name,
        experts,
        names=names,
        bias=bias,
        stacking=stacking,
        activation=activation,
        limit=limit,
    )
    if not experts.shared:
        return x
    module, shared = f"{name}.{names.shared}", m.with_config(intermediate_size=experts.shared)
    if not names.shared_gate:
        return shared.feed_forward(h, x, module, factor=factor)
    h = m.glu(shared.gate_up(h, module), f"{module}.act")
    # A factor of a row passes through a linear layer.
    gate = f"{module}.gate"
    h = m.add(
        GatedOp(
            name=gate,
            x=h,
            gates=logits,
            column=columns[1],
            stride=experts.shared,
            heads=gate_heads(h.width, 1),
            activation="sigmoid",
            single=True,
        )
    )
    return m.output(h, x, f"{module}.down_proj")


def routed(
    m: ModelBuilder,
    h: Value,
    name: str,
    experts: ExpertFields,
    names: Names,
    *,
    bias: bool = False,
    factor: float = 1.0,
) -> tuple[Route, Value, list[int]]:
    """Add the router of h. Return the route, the router's row, and where its logits and the gate
    of the shared expert, if it has one, begin in the row."""
    router, scoring, d = f"{name}.{names.router}", experts.scoring, h.width
    # Both keep the checkpoint's type.
    parts = [Linear(router, experts.count, d, bias, exact=True)]
    if experts.shared > 0 and names.shared_gate:
        parts.append(Linear(f"{name}.{names.shared_gate}", 1, d, exact=True))
    logits, columns = m.merged_linear(h, router, parts)
    if names.bias:
        shape = (1, experts.count) if names.bias_is_row else (experts.count,)
        added = m.weights.vector(f"{name}.{names.bias}", *shape).reshape(-1)
        scoring = replace(scoring, bias=tuple(added.tolist()))
    scoring = replace(scoring, scale=scoring.scale * factor)
    count, chosen, of_all = experts.count, experts.chosen, experts.of_all
    return m.graph.route(logits, count, chosen, router, of_all, scoring=scoring), logits, columns


def combined(
    m: ModelBuilder,
    h: Value,
    x: Value | None,
    route: Route,
    name: str,
    experts: ExpertFields,
    *,
    names: Names = NAMES,
    bias: bool = False,
    stacking: Stacking = STACKED,
    activation: str = "",
    limit: float = 0.0,
) -> Value:
    """(x +) the output of a route's experts for each row of h; other arguments as in
    `feed_forward`."""
    module, count, d = f"{name}.experts", experts.count, m.config.hidden_size
    activation = activation or m.config.activation
    rows = m.graph.spread(h, route, f"{module}.spread", experts.scales_inputs)
    parts = [Linear(f"{name}.{part}", experts.width, d, bias) for part in names.gate_up]
    rows = _linear(m, rows, f"{name}.{names.stacked[0]}", parts, count, stacking)
    if names.gate:
        rows = m.graph.glu(rows, activation, f"{module}.act", limit)
    else:
        rows = m.graph.activation(rows, activation, f"{module}.act")
    down = [Linear(f"{name}.{names.down}", d, experts.width, bias)]
    rows = _linear(m, rows, f"{name}.{names.stacked[1]}", down, count, stacking)
    return m.graph.combine(rows, x, module)


def _linear(
    m: ModelBuilder, rows: Value, name: str, parts: list[Linear], count: int, stacking: Stacking
) -> Value:
    weights = m.weights.experts(name, parts, count, stacking)
    bias = m.weights.experts_bias(name, parts, count, stacking) if parts[0].bias else None
    return m.graph.linear(rows, weights, name, bias=bias)
