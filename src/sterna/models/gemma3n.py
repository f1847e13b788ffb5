"""Gemma 3n (E2B, E4B), text only: Gemma 4's rows and shared keys, and several streams of a token.

    p = streams mixed by factors of stream a (AltUp);   h = norm(p_a)
    y = (p_a + norm(o(attention(h))) + h + norm(right(left(h)))) / sqrt(2)   (LAuReL)
    y = y + norm(down(gelu(cutoff(gate)) * up)) of norm(y)
    x = p + factors of y * (y - p_a);   x_j = x_j + norm(projection(gelu(gate(x_a)) * rows)), j > 0

The factors of a stream v come from tanh(router(norm(v) / hidden_size)). In sparse layers a cutoff
makes 0 of gates below a number of standard deviations above their mean. arXiv 2301.13310 (AltUp),
2411.07501 (LAuReL).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from sterna.graph import Piece, Value
from sterna.graph.ops import AltUpOp, CutoffOp, RescaleOp, ScaleOp
from sterna.models import gemma4
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import rotations_of
from sterna.weights.sources import Linear

ARCHITECTURES = ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": [16384] * 35}
    | {"num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
    | {"hidden_act": ACTIVATION, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6}
    | {"tie_word_embeddings": True, "attention_bias": False, "sliding_window": 512}
    | {"final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 262144}
    | {"hidden_size_per_layer_input": 256, "altup_active_idx": 0, "altup_correct_scale": True}
    | {"altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64}
    | {"activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25}
)
_LAYER = gemma4.GGUF["gemma4"]
GGUF = {
    "gemma3n": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        without(_LAYER.modules, "layer_scalar")
        | {"altup.correction_coefs": "altup_correct_coef"}
        | {"altup.modality_router": "altup_router"}
        | {"altup.prediction_coefs": "altup_predict_coef"}
        | {"altup.router_norm": "altup_router_norm", "laurel.linear_left": "laurel_l"}
        | {"laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm"},
        reads=_LAYER.reads,
        varied=True,
        arrays={"altup.correct_output_scale": "altup_correct_scale.weight"},
        outer=_LAYER.outer
        | {"model.altup_projections": "altup_proj"}
        | {"model.altup_unembed_projections": "altup_unembd_proj"},
    )
}
PREFIXES, SKIPPED = gemma4.PREFIXES, gemma4.SKIPPED
#: Fields of ours: the width of each layer's FFN, and how many standard deviations above the mean
#: its cutoff is, None if it has none.
WIDTHS, DEVIATIONS = "intermediate_sizes", "activation_deviations"
_PATTERN, _ROOT_HALF = "activation_sparsity_pattern", 0.5**0.5


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, and the layers' kinds, widths and cutoffs."""
    text = f.mapping("text_config")
    t = f.having({**f.config, **text})
    n = t.n_layers
    kinds = t.items("layer_types", n, (SLIDING, FULL))
    kinds = kinds or [SLIDING if (i + 1) % 5 else FULL for i in range(n)]
    first_shared = n - gemma4.shared_layers(t)
    if not {*kinds[first_shared:]} <= {*kinds[:first_shared]}:
        rule = "fewer than all layers of a kind, as the last ones read the keys of others"
        t.fail("num_kv_shared_layers", rule, n - first_shared)
    name, streams = "hidden_size_per_layer_input", t.count("altup_num_inputs", most=64)
    if t.count(name) % 16:
        t.fail(name, "a multiple of 16", t.count(name))
    active = t.config["altup_active_idx"]
    if type(active) is not int or not 0 <= active < streams:
        t.fail("altup_active_idx", f"a whole number below altup_num_inputs={streams}", active)
    widths = _of_layers(t, "intermediate_size")
    derived = {
        **text,
        "layer_types": kinds,
        "intermediate_size": widths[0],
        WIDTHS: [t.having({"intermediate_size": v}).count("intermediate_size") for v in widths],
        "rope_parameters": rotations_of(
            t, {SLIDING: {"rope_theta": 1e4}, FULL: {"rope_theta": 1e6}}
        ),
        "tie_word_embeddings": f.flag("tie_word_embeddings") or t.flag("tie_word_embeddings"),
    }
    if DEVIATIONS in t.config:  # of a GGUF file
        return derived
    sparse = _of_layers(t, _PATTERN)
    if not all(isinstance(s, int | float) and 0 <= s < 1 for s in sparse):
        t.fail(_PATTERN, "numbers from 0 on and below 1", sparse)
    return derived | {DEVIATIONS: [NormalDist().inv_cdf(s) if s else None for s in sparse]}


def _of_layers(t: Fields, field: str) -> list[Any]:
    """Return a field of each layer, which may be one for all; null: the class's."""
    value = t.config[field]
    if value is None:
        value = [0.95 if t.n_layers > 10 and i < 10 else 0.0 for i in range(t.n_layers)]
    values = value if isinstance(value, list) else [value] * t.n_layers
    if len(values) != t.n_layers:
        if values == DEFAULTS[field]:  # the file says nothing
            return [values[0] if field != _PATTERN else 0.0] * t.n_layers
        t.fail(field, f"one for each of {t.n_layers} layers", len(values))
    return values


def unread(c: TransformerConfig) -> set[str]:
    """Return modules without effect: keys of layers that read another layer's, unused scales."""
    scales = {f"model.layers.{i}.altup" for i in range(c.n_layers)}  # `correct_output_scale` of it
    return gemma4.unread(c) | (set() if c.fields.flag("altup_correct_scale") else scales)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f, d = m.config.fields, m.config.hidden_size
    first_shared = m.config.n_layers - gemma4.shared_layers(f)
    active = m.embedding(d**0.5)
    rows = gemma4.rows(m, active)
    assert rows is not None
    x, keys = _streams(m, active), dict[str, Value]()
    for i, kind in enumerate(f.config["layer_types"]):
        p = f"model.layers.{i}"
        x = _mixed(m, x, p, "prediction_coefs", _active(m, x))
        active = _active(m, x)
        heads, y = _attended(m, active, i, keys[kind] if i >= first_shared else None)
        if i < first_shared:
            keys[kind] = heads
        y = _feed_forward(m, y, i)
        x = _mixed(m, x, p, "correction_coefs", y, y)
        x = _add_row(m, x, rows, i)
    return m.logits(_joined(m, x), cap=f.cap("final_logit_softcapping"))


def _count(m: ModelBuilder) -> int:
    return m.config.fields.count("altup_num_inputs")


def _active(m: ModelBuilder, x: Value) -> Value:
    """Return the stream that layers work on."""
    c = m.config
    begin = int(c.fields.config["altup_active_idx"]) * c.hidden_size
    return m.graph.columns(x, c.hidden_size, "altup.active", begin)


def _each(m: ModelBuilder, x: Value, piece: Piece, name: str) -> Value:
    """Multiply the pieces of x by a matrix for each; return the results side by side."""
    d = m.config.hidden_size
    rows = m.graph.head_rows(x, piece, name)
    weights = m.weights.experts(name, [Linear(f"{name}.{{}}", d, d)], piece.count)
    made = m.graph.linear(rows, weights, name)
    return m.graph.place(piece.count * d, [(made, Piece(d, piece.count, to_stride=d))], name)


def _streams(m: ModelBuilder, x: Value) -> Value:
    """Make the streams of a token, all as large as its embedding x."""
    d, others = m.config.hidden_size, _count(m) - 1
    name = "model.altup_projections"
    made = _each(m, x, Piece(d, others), name)
    rescaled = [m.add(RescaleOp(name=name, x=made, size_of=x, column=i * d)) for i in range(others)]
    return m.graph.concatenate([x, *rescaled])


def _joined(m: ModelBuilder, x: Value) -> Value:
    """Add the norm of the mean of all streams, each made as large as the first."""
    d, n = m.config.hidden_size, _count(m)
    name = "model.altup_unembed_projections"
    made = _each(m, x, Piece(d, n - 1, begin=d, stride=d), name)
    row = m.graph.place(n * d, [(x, Piece(d)), (made, Piece((n - 1) * d, column=d))], name)
    row = m.select(row)
    first = total = m.graph.columns(row, d, name)
    for i in range(1, n):
        total = m.add(RescaleOp(name=name, x=row, size_of=first, column=i * d, residual=total))
    # The norm of a mean is that of the sum, with n^2 times its epsilon.
    summed = m.with_config(rms_norm_eps=m.config.rms_norm_eps * n * n)
    return summed.norm(total, "model.norm")


def _mixed(
    m: ModelBuilder, x: Value, p: str, part: str, of: Value, made: Value | None = None
) -> Value:
    """Mix streams by the factors that the row `of` has; made: as in `AltUpOp`."""
    c = m.config
    n, name = _count(m), f"{p}.altup"
    weight = m.norm_weight(f"{name}.router_norm", c.hidden_size)
    weight = weight * np.float32(1 / c.hidden_size)
    h = m.graph.norm(of, weight, c.rms_norm_eps, f"{name}.router_norm")
    h = m.linear(h, f"{name}.modality_router", n, exact=True)
    h = m.graph.activation(h, "tanh", f"{name}.tanh")
    h = m.linear(h, f"{name}.{part}", n if made else n * n, exact=True)
    active = int(c.fields.config["altup_active_idx"])
    return m.add(AltUpOp(name=name, x=x, factors=h, streams=n, active=active, made=made))


def _attended(m: ModelBuilder, x: Value, layer: int, keys_of: Value | None) -> tuple[Value, Value]:
    """Return attention's heads, and x + attention."""
    c = m.config
    p, d, rank = f"model.layers.{layer}", c.hidden_size, c.fields.count("laurel_rank")
    name = f"{p}.input_layernorm"
    h, y = m.norm(x, name), m.norm(x, name, residual=x)
    options = AttentionOptions(bias=c.attention_bias, qk_norm=QKNorm(), v_norm=True, scale=1.0)
    heads = m.attention(h, layer, f"{p}.self_attn", options, keys_of=keys_of)
    h = m.linear(h, f"{p}.laurel.linear_left", rank)
    h = m.linear(h, f"{p}.laurel.linear_right", d)
    y = m.norm(h, f"{p}.laurel.post_laurel_norm", residual=y)
    h = m.output(heads, None, f"{p}.self_attn.o_proj", bias=c.attention_bias)
    name = f"{p}.post_attention_layernorm"
    return heads, m.norm(h, name, residual=y, factor=_ROOT_HALF)


def _feed_forward(m: ModelBuilder, y: Value, layer: int) -> Value:
    """Add the FFN."""
    p, f = f"model.layers.{layer}", m.config.fields.config
    h = m.norm(y, f"{p}.pre_feedforward_layernorm")
    width, deviations = f[WIDTHS][layer], f[DEVIATIONS][layer]
    h = m.with_config(intermediate_size=width).gate_up(h, f"{p}.mlp")
    if deviations is not None:
        name = f"{p}.mlp.cutoff"
        h = m.add(CutoffOp(name=name, x=h, width=width, deviations=deviations))
    h = m.glu(h, f"{p}.mlp.act")
    h = m.output(h, None, f"{p}.mlp.down_proj")
    return m.norm(h, f"{p}.post_feedforward_layernorm", residual=y)


def _add_row(m: ModelBuilder, x: Value, rows: Value, layer: int) -> Value:
    """Add the layer's row, which the active stream gates, to all streams but the first."""
    p, d, others = f"model.layers.{layer}", m.config.hidden_size, _count(m) - 1
    h = _active(m, x)
    if m.config.fields.flag("altup_correct_scale"):
        scale = m.weights.vector(f"{p}.altup.correct_output_scale", d)
        h = m.add(ScaleOp(name=f"{p}.altup.correct_output_scale", x=h, factors=scale))
    h = gemma4.gated_row(m, h, rows, layer)
    name = f"{p}.post_per_layer_input_norm"
    repeated = m.graph.place(others * d, [(h, Piece(d, others, to_stride=d))], name)
    rest = m.graph.columns(x, others * d, name, d)
    weight = m.norm_weight(name, d)
    rest = m.graph.norm(repeated, weight, m.config.rms_norm_eps, name, residual=rest)
    return m.graph.place(x.width, [(x, Piece(d)), (rest, Piece(others * d, column=d))], name)
