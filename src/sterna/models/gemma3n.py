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

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from sterna.graph import GraphBuilder, Piece, Value
from sterna.models import gemma4, layers
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.rotations import rotations_of
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
ACTIVATION = gemma4.ACTIVATION
TERNARY = gemma4.TERNARY
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262400, "hidden_size": 2048, "intermediate_size": [16384] * 35,
    "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "hidden_act": ACTIVATION, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "attention_bias": False, "sliding_window": 512,
    "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256, "altup_active_idx": 0, "altup_correct_scale": True,
    "altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25,
}  # fmt: skip
_LAYER = gemma4.GGUF["gemma4"]
GGUF = {
    "gemma3n": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            **{k: v for k, v in _LAYER.modules.items() if k != "layer_scalar"},
            "altup.correction_coefs": "altup_correct_coef", "altup.modality_router": "altup_router",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.router_norm": "altup_router_norm",
            "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
        },
        reads=_LAYER.reads, varied=True,
        arrays={"altup.correct_output_scale": "altup_correct_scale.weight"},
        outer={
            **_LAYER.outer, "model.altup_projections": "altup_proj",
            "model.altup_unembed_projections": "altup_unembd_proj",
        },
    )
}  # fmt: skip
PREFIXES, SKIPPED = gemma4.PREFIXES, gemma4.SKIPPED
#: Fields of ours: the width of each layer's FFN, and how many standard deviations above the mean
#: its cutoff is, None if it has none.
WIDTHS, DEVIATIONS = "intermediate_sizes", "activation_deviations"
_PATTERN, _ROOT_HALF = "activation_sparsity_pattern", 0.5**0.5


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields alone, and the layers' kinds, widths and cutoffs."""
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
    found = {
        **text, "layer_types": kinds, "intermediate_size": widths[0],
        WIDTHS: [t.having({"intermediate_size": v}).count("intermediate_size") for v in widths],
        "rope_parameters": rotations_of(
            t, {SLIDING: {"rope_theta": 1e4}, FULL: {"rope_theta": 1e6}}
        ),
        "tie_word_embeddings": f.flag("tie_word_embeddings") or t.flag("tie_word_embeddings"),
    }  # fmt: skip
    if DEVIATIONS in t.config:  # of a GGUF file
        return found
    sparse = _of_layers(t, _PATTERN)
    if not all(isinstance(s, int | float) and 0 <= s < 1 for s in sparse):
        t.fail(_PATTERN, "numbers from 0 on and below 1", sparse)
    return found | {DEVIATIONS: [NormalDist().inv_cdf(s) if s else None for s in sparse]}


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


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    f, d = c.fields, c.hidden_size
    first_shared, cap = c.n_layers - gemma4.shared_layers(f), f.cap("final_logit_softcapping")
    active, table = layers.embedding(g, c, w, d**0.5)
    rows = gemma4.rows(g, c, w, active)
    assert rows is not None
    x, keys = _streams(g, c, w, active), dict[str, Value]()
    for i, kind in enumerate(f.config["layer_types"]):
        p = f"model.layers.{i}"
        x = _mixed(g, c, w, x, p, "prediction_coefs", _active(g, c, x))
        active = _active(g, c, x)
        heads, y = _attended(g, c, w, active, i, keys[kind] if i >= first_shared else None)
        if i < first_shared:
            keys[kind] = heads
        y = _feed_forward(g, c, w, y, i)
        x = _mixed(g, c, w, x, p, "correction_coefs", y, y)
        x = _add_row(g, c, w, x, rows, i)
    return layers.logits(g, c, w, _joined(g, c, w, x), table, cap=cap)


def _count(c: TransformerConfig) -> int:
    return c.fields.count("altup_num_inputs")


def _active(g: GraphBuilder, c: TransformerConfig, x: Value) -> Value:
    """Return the stream that layers work on."""
    begin = int(c.fields.config["altup_active_idx"]) * c.hidden_size
    return g.place(c.hidden_size, [(x, Piece(c.hidden_size, begin=begin))], "altup.active")


def _each(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, piece: Piece, name: str
) -> Value:
    """Multiply the pieces of x by a matrix for each; return the results side by side."""
    d = c.hidden_size
    rows = g.head_rows(x, piece, name)
    made = g.linear(rows, w.experts(name, [Linear(f"{name}.{{}}", d, d)], piece.count), name)
    return g.place(piece.count * d, [(made, Piece(d, piece.count, to_stride=d))], name)


def _streams(g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value) -> Value:
    """Make the streams of a token, all as large as its embedding x."""
    d, others = c.hidden_size, _count(c) - 1
    name = "model.altup_projections"
    made = _each(g, c, w, x, Piece(d, others), name)
    rescaled = [g.rescale(made, x, name, column=i * d) for i in range(others)]
    return g.concatenate([x, *rescaled])


def _joined(g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value) -> Value:
    """Write the norm of the mean of all streams, each made as large as the first."""
    d, n = c.hidden_size, _count(c)
    name = "model.altup_unembed_projections"
    made = _each(g, c, w, x, Piece(d, n - 1, begin=d, stride=d), name)
    row = g.select(g.place(n * d, [(x, Piece(d)), (made, Piece((n - 1) * d, column=d))], name))
    first = total = g.place(d, [(row, Piece(d))], name)
    for i in range(1, n):
        total = g.rescale(row, first, name, column=i * d, residual=total)
    # The norm of a mean is that of the sum, with n^2 times its epsilon.
    summed = replace(c, rms_norm_eps=c.rms_norm_eps * n * n)
    return layers.norm(g, summed, w, total, "model.norm")


def _mixed(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, p: str, part: str,
    of: Value, made: Value | None = None,
) -> Value:  # fmt: skip
    """Mix streams by the factors that the row `of` has; made: as in `GraphBuilder.altup`."""
    n, name = _count(c), f"{p}.altup"
    weight = layers.norm_weight(w, f"{name}.router_norm", c.hidden_size)
    weight = weight * np.float32(1 / c.hidden_size)
    h = g.norm(of, weight, c.rms_norm_eps, f"{name}.router_norm")
    for module, M, K in (("modality_router", n, c.hidden_size), (part, n if made else n * n, n)):
        linear = Linear(f"{name}.{module}", M, K, exact=True)
        h = layers.linear(g, c, w, h, linear.name, [linear])
        h = h if module == part else g.activation(h, "tanh", f"{name}.tanh")
    return g.altup(x, h, n, int(c.fields.config["altup_active_idx"]), name, made)


def _attended(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, layer: int,
    keys_of: Value | None,
) -> tuple[Value, Value]:  # fmt: skip
    """Return attention's heads, and the first half of a layer."""
    p, d, rank = f"model.layers.{layer}", c.hidden_size, c.fields.count("laurel_rank")
    name = f"{p}.input_layernorm"
    h, y = layers.norm(g, c, w, x, name), layers.norm(g, c, w, x, name, residual=x)
    options = layers.AttentionOptions(
        bias=c.attention_bias, qk_norm=layers.HeadNorms(), v_norm=True, scale=1.0
    )
    heads = layers.attention(g, c, w, h, layer, f"{p}.self_attn", options, keys_of=keys_of)
    for side, M, K in (("left", rank, d), ("right", d, rank)):
        part = Linear(f"{p}.laurel.linear_{side}", M, K)
        h = layers.linear(g, c, w, h, part.name, [part])
    y = layers.norm(g, c, w, h, f"{p}.laurel.post_laurel_norm", residual=y)
    h = layers.output(g, c, w, heads, None, f"{p}.self_attn.o_proj", bias=c.attention_bias)
    name = f"{p}.post_attention_layernorm"
    return heads, layers.norm(g, c, w, h, name, residual=y, factor=_ROOT_HALF)


def _feed_forward(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, y: Value, layer: int
) -> Value:
    """Write the second half of a layer."""
    p, f = f"model.layers.{layer}", c.fields.config
    h = layers.norm(g, c, w, y, f"{p}.pre_feedforward_layernorm")
    ffn = replace(c, intermediate_size=f[WIDTHS][layer])
    h = layers.gate_up(g, ffn, w, h, f"{p}.mlp")
    if f[DEVIATIONS][layer] is not None:
        h = g.cutoff(h, ffn.intermediate_size, f[DEVIATIONS][layer], f"{p}.mlp.cutoff")
    h = g.glu(h, c.activation, f"{p}.mlp.act")
    h = layers.output(g, c, w, h, None, f"{p}.mlp.down_proj")
    return layers.norm(g, c, w, h, f"{p}.post_feedforward_layernorm", residual=y)


def _add_row(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, rows: Value, layer: int
) -> Value:
    """Add the layer's row, which the active stream gates, to all streams but the first."""
    p, d, others = f"model.layers.{layer}", c.hidden_size, _count(c) - 1
    h = _active(g, c, x)
    if c.fields.flag("altup_correct_scale"):
        scale = w.vector(f"{p}.altup.correct_output_scale", d)
        h = g.scale(h, scale, f"{p}.altup.correct_output_scale")
    h = gemma4.gated_row(g, c, w, h, rows, layer)
    name = f"{p}.post_per_layer_input_norm"
    repeated = g.place(others * d, [(h, Piece(d, others, to_stride=d))], name)
    behind = g.place(others * d, [(x, Piece(others * d, begin=d))], name)
    weight = layers.norm_weight(w, name, d)
    behind = g.norm(repeated, weight, c.rms_norm_eps, name, residual=behind)
    return g.place(x.width, [(x, Piece(d)), (behind, Piece(others * d, column=d))], name)
