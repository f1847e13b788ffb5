"""Mamba-2: a state space after a causal convolution. arXiv 2405.21060.

    [z | x | B | C | dt] = in_proj(h);   [x | B | C] = silu(conv(x, B, C))
    S = exp(-exp(A_log) d) S + B (d x)^T,   d = softplus(dt + dt_bias);   y = S^T C + D x
    result = out_proj(norm(y silu(z)))

S is the state of a head; the heads of a group have one B and C, and one norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sterna import _native
from sterna.graph import RecurrentHeads, Value
from sterna.graph.heads import F32, gate_heads
from sterna.graph.ops import ConvOp, GatedOp, ScaleOp, StateSpaceOp
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, MAX_HEAD_DIM
from sterna.models.config_fields import Fields
from sterna.models.qwen3_5 import LINEAR, MAX_TAPS

__all__ = ["ARRAYS", "DEFAULTS", "GGUF_KEYS", "MODULES", "StateSpace", "layer", "mixers"]

MAX_HEADS = 1 << 14
#: Fields of config.json, in the words of most families, with their usual defaults.
DEFAULTS: dict[str, Any] = (
    {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4}
    | {"mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True}
    | {"mamba_proj_bias": False, "time_step_limit": [0.0, math.inf]}
)
#: Modules of a layer, by their names in the checkpoint -> in GGUF files; those without `.weight`.
MODULES = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out"}
ARRAYS = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
#: Keys of GGUF files that are fields.
GGUF_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
#: Names of the two kinds of mixers in config.json, of transformers 5 and before.
_KINDS = {LINEAR: LINEAR, "mamba": LINEAR, FULL: FULL, "attention": FULL}


@dataclass(frozen=True)
class StateSpace:
    """The sizes of a layer, and how it differs from others.

    taps: the number of positions that the convolution reads. limits: the bounds of d. conv_bias,
    in_bias, out_bias: whether the convolution and the projections have biases. norm: whether there
    is an RMSNorm; gate_first: it reads y silu(z) instead of y. multipliers: factors of z, x, B, C
    and dt; (): none.
    """

    heads: RecurrentHeads
    taps: int
    limits: tuple[float, float]
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    norm: bool = True
    gate_first: bool = True
    multipliers: tuple[float, ...] = ()

    @classmethod
    def of(cls, f: Fields, inner: int | None = None) -> StateSpace:
        """Read config.json; inner: the width of x, heads times features, if a field says it."""
        heads, groups = f.count("mamba_n_heads", most=MAX_HEADS), f.count("mamba_n_groups")
        if heads % groups:
            f.fail("mamba_n_groups", f"a divisor of {f.name('mamba_n_heads')}={heads}", groups)
        if inner is not None and inner % heads:
            f.fail("mamba_n_heads", f"a divisor of {inner}, the width of the layer", heads)
        width = "mamba_d_head"
        auto = inner is not None and f.config.get(width) in (None, "auto")
        v_dim = (inner or 0) // heads if auto else f.count(width, most=MAX_HEAD_DIM)
        if inner not in (None, heads * v_dim):
            f.fail(width, f"{inner // heads}, the layer's {inner} by {heads} heads", v_dim)
        bias = f.flag("mamba_proj_bias")
        return cls(
            heads=RecurrentHeads(groups, heads, f.count("mamba_d_state", most=MAX_HEAD_DIM), v_dim),
            taps=f.count("mamba_d_conv", most=MAX_TAPS),
            limits=_limits(f),
            conv_bias=f.flag("mamba_conv_bias"),
            in_bias=bias,
            out_bias=bias,
        )

    @property
    def factors(self) -> F32 | None:
        """The factors of in_proj's columns; None: none."""
        if all(value == 1 for value in self.multipliers):
            return None
        h = self.heads
        states = h.k_heads * h.k_dim
        widths = (h.v_width, h.v_width, states, states, h.v_heads)
        return np.repeat(np.asarray(self.multipliers, np.float32), widths)


def _limits(f: Fields) -> tuple[float, float]:
    """Read the bounds of steps; transformers saves infinity as {"__float__": "Infinity"}."""
    limits = f.config["time_step_limit"]
    listed = limits if isinstance(limits, list | tuple) else [limits]
    listed = [0.0, math.inf] if limits is None else listed
    pair = [math.inf if isinstance(v, dict) else v for v in listed]
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in pair)
    if len(pair) != 2 or not plain or not 0 <= pair[0] <= pair[1]:
        f.fail("time_step_limit", "two numbers, the second of which is not smaller", limits)
    return float(pair[0]), float(pair[1])


def mixers(f: Fields, listed: str = "layer_types") -> list[str]:
    """Return the kind of each layer, FULL or LINEAR; at least one attends."""
    types = f.items(listed, f.n_layers, tuple(_KINDS))
    kinds = [_KINDS[kind] for kind in types or [LINEAR] * f.n_layers]
    if FULL not in kinds:
        f.fail(listed, f"at least one {FULL}", LINEAR)
    return kinds


def layer(
    m: ModelBuilder, h: Value, x: Value, name: str, s: StateSpace, factor: float = 1.0
) -> Value:
    """x + factor * the result of a Mamba-2 layer for h."""
    r = s.heads
    z, states = r.v_width, r.k_heads * r.k_dim
    row = m.linear(h, f"{name}.in_proj", z + r.width + r.v_heads, bias=s.in_bias)
    if (factors := s.factors) is not None:
        row = m.add(ScaleOp(name=f"{name}.in_proj.multipliers", x=row, factors=factors))
    taps = m.taps(f"{name}.conv1d", r.width, s.taps)
    bias = m.weights.vector(f"{name}.conv1d.bias", r.width) if s.conv_bias else None
    row = m.add(ConvOp(name=f"{name}.conv1d", x=row, taps=taps, bias=bias, column=z))
    a_log, dt_bias, skip = (
        m.weights.vector(f"{name}.{n}", r.v_heads) for n in ("A_log", "dt_bias", "D")
    )
    rate = -_native.exponentials(a_log)
    step = 2 * z + 2 * states
    y = m.add(
        StateSpaceOp(
            name=name,
            x=row,
            heads=r,
            column=z,
            step=step,
            rate=rate,
            bias=dt_bias,
            skip=skip,
            least=s.limits[0],
            most=s.limits[1],
        )
    )
    weight = m.weights.vector(f"{name}.norm.weight", z) if s.norm else None
    y = m.add(
        GatedOp(
            name=f"{name}.norm",
            x=y,
            gates=row,
            column=0,
            stride=z // r.k_heads,
            heads=gate_heads(y.width, r.k_heads),
            activation="silu",
            norm=weight,
            eps=m.config.rms_norm_eps,
            first=s.gate_first and s.norm,
        )
    )
    return m.output(y, x, f"{name}.out_proj", bias=s.out_bias, factor=factor)
