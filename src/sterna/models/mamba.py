"""Mamba: a selective scan of each channel after a causal convolution; no layer attends.
arXiv 2312.00752.

    [u | z] = in_proj(norm(x));   u = silu(conv(u));   [d | B | C] = x_proj(u)
    S = exp(-exp(A_log) h) S + B h u,   h = softplus(dt_proj(d));   y = S^T C + D u
    x = x + out_proj(y silu(z))

S is the state of a channel, which has an A_log of its own; all channels have one B and C. Other
families normalise d, B and C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sterna import _native
from sterna.graph import Value
from sterna.graph.heads import F32, gate_heads
from sterna.graph.ops import ConvOp, GatedOp, SelectiveScanOp
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.qwen3_5 import MAX_TAPS
from sterna.weights.sources import WeightSource

__all__ = ["ARRAYS", "LAYER_DEFAULTS", "MODULES", "SelectiveScan", "layer"]

ARCHITECTURES = ("MambaForCausalLM",)
MAX_WIDTH = 1 << 16  # of the inner row: native kMaxHeadDim
#: No text is too long for a state, but pages count its positions.
CONTEXT = 1 << 18
#: Fields of a layer in config.json, in the words of hybrids, with their usual defaults.
LAYER_DEFAULTS: dict[str, Any] = {
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
DEFAULTS: dict[str, Any] = (
    LAYER_DEFAULTS
    | {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "hidden_act": "silu"}
    | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}
)
ALIASES = {
    "state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "time_step_rank": "mamba_dt_rank",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "layer_norm_epsilon": "rms_norm_eps",
}
PREFIXES = {
    "backbone.embeddings.": "model.embed_tokens.",
    "backbone.norm_f.": "model.norm.",
    "backbone.": "model.",
}
#: Modules of a layer, by their names in the checkpoint -> in GGUF files; those without `.weight`.
MODULES = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "out_proj": "ssm_out",
}
ARRAYS = {"A_log": "ssm_a", "D": "ssm_d"}
#: Keys of GGUF files that are fields.
GGUF_KEYS = {"ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state"}
GGUF = {
    "mamba": GgufArchitecture(
        ARCHITECTURES[0],
        modules={"norm": "attn_norm", **{f"mixer.{m}": name for m, name in MODULES.items()}},
        arrays={f"mixer.{module}": name for module, name in ARRAYS.items()},
        keys=GGUF_KEYS,
        varied=True,
        attends=False,
    )
}


@dataclass(frozen=True)
class SelectiveScan:
    """The sizes of a layer, and how it differs from others.

    inner: channels of u. states: values of a channel's state. rank: width of d.
    taps: the number of positions that the convolution reads. conv_bias: the convolution has a
    bias. bias: in_proj and out_proj have biases.
    norm_eps: the epsilon of RMSNorms of d, B and C; 0: there are none. norms: their names; (): they
    have no weights.
    """

    inner: int
    states: int
    rank: int
    taps: int
    conv_bias: bool
    bias: bool
    norm_eps: float = 0.0
    norms: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, f: Fields, inner: int, norm_eps: float = 0.0, norms: tuple[str, ...] = ()
    ) -> SelectiveScan:
        """Read config.json; a rank that it leaves to the class is 1/16 of the hidden size."""
        rank, auto = "mamba_dt_rank", -(-f.count("hidden_size") // 16)
        if inner > MAX_WIDTH:
            f.fail("mamba_expand", f"a width of layers up to {MAX_WIDTH}", inner)
        return cls(
            inner=inner,
            states=f.count("mamba_d_state", most=MAX_HEAD_DIM),
            rank=auto if f.config.get(rank) == "auto" else f.count(rank, auto),
            taps=f.count("mamba_d_conv", most=MAX_TAPS),
            conv_bias=f.flag("mamba_conv_bias"),
            bias=f.flag("mamba_proj_bias"),
            norm_eps=norm_eps,
            norms=norms,
        )


def layer(m: ModelBuilder, h: Value, x: Value, name: str, s: SelectiveScan) -> Value:
    """x + the result of a Mamba layer for h."""
    row = m.linear(h, f"{name}.in_proj", 2 * s.inner, bias=s.bias)
    u = m.graph.columns(row, s.inner, f"{name}.u")
    taps = m.taps(f"{name}.conv1d", s.inner, s.taps)
    bias = m.weights.vector(f"{name}.conv1d.bias", s.inner) if s.conv_bias else None
    u = m.add(ConvOp(name=f"{name}.conv1d", x=u, taps=taps, bias=bias))
    d, k, q = _selected(m, u, name, s)
    # It keeps the checkpoint's type: decays depend on it, and few formats have blocks so narrow.
    step = m.linear(d, f"{name}.dt_proj", s.inner, bias=True, exact=True)
    skip = m.weights.vector(f"{name}.D", s.inner)
    y = m.add(
        SelectiveScanOp(
            name=name,
            x=u,
            step=step,
            rate=_rates(m.weights, name, s),
            skip=skip,
            k=k[0],
            k_column=k[1],
            q=q[0],
            q_column=q[1],
        )
    )
    y = m.add(
        GatedOp(
            name=f"{name}.gate",
            x=y,
            gates=row,
            column=s.inner,
            stride=s.inner,
            heads=gate_heads(y.width, 1),
            activation="silu",
        )
    )
    return m.output(y, x, f"{name}.out_proj", bias=s.bias)


def _rates(w: WeightSource, name: str, s: SelectiveScan) -> F32:
    a_log = w.vector(f"{name}.A_log", s.inner, s.states)
    rates = -_native.exponentials(a_log.reshape(-1)).reshape(s.inner, s.states)
    return np.ascontiguousarray(rates.T)


def _selected(
    m: ModelBuilder, u: Value, name: str, s: SelectiveScan
) -> tuple[Value, tuple[Value, int], tuple[Value, int]]:
    """Return d, and where B and C stand in a row."""
    row = m.linear(u, f"{name}.x_proj", s.rank + 2 * s.states)
    k, q = s.rank, s.rank + s.states
    if not s.norm_eps:
        return m.graph.columns(row, s.rank, f"{name}.dt"), (row, k), (row, q)
    normed = list[Value]()
    for n, (begin, width) in enumerate(((0, s.rank), (k, s.states), (q, s.states))):
        of = f"{name}.{s.norms[n]}" if s.norms else f"{name}.x_proj.norm"
        weight = m.weights.vector(f"{of}.weight", width) if s.norms else np.ones(width, np.float32)
        piece = m.graph.columns(row, width, of, begin)
        normed.append(m.graph.norm(piece, weight, s.norm_eps, of))
    return normed[0], (normed[1], 0), (normed[2], 0)


def complete(f: Fields) -> dict[str, Any]:
    """Return what configs of models with attention say."""
    width = f.count("mamba_expand") * f.count("hidden_size")
    return without_attention(f, f.count("intermediate_size", width))


def without_attention(f: Fields, width: int) -> dict[str, Any]:
    """Return the fields of a model without attention: its context, and heads that no layer has.

    width: the inner width of a layer.
    """
    return {
        "intermediate_size": width,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "rope_theta": 10000.0,
        "no_rope_layers": [0] * f.n_layers,
        "layer_types": None,
        "max_position_embeddings": f.count("max_position_embeddings", CONTEXT),
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    normed = f.config.get("mixer_rms_eps") is not None
    eps = f.number("mixer_rms_eps") if normed else 0.0
    scan = SelectiveScan.of(f, m.config.intermediate_size, eps)
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.norm")
        x = layer(m, h, x, f"{p}.mixer", scan)
    return m.head(x)
