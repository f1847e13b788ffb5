"""Jamba: Mamba in most layers, attention without rotations in the others; experts in every second
layer. arXiv 2403.19887.

    x = x + mamba(norm(x)),   or   x = x + o(attention(q, k, v))
    x = x + ffn(norm(x)),   or   x = x + experts(norm(x))

Mamba's steps, B and C have norms. Shares of experts are their scores, whose sum is below 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import mamba, mamba2, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL
from sterna.models.config_defaults import COMMON, without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, GgufArchitecture
from sterna.models.qwen3_5 import LINEAR, MIXERS

ARCHITECTURES = ("JambaForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(COMMON, "rope_theta")
    | mamba.LAYER_DEFAULTS
    | {"vocab_size": 65536, "intermediate_size": 14336, "num_key_value_heads": 8}
    | {"rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "num_experts": 16}
    | {"num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}
    | {"attn_layer_period": 8, "attn_layer_offset": 4}
)
PREFIXES = {"model.final_layernorm.": "model.norm."}
DENSE, SPARSE = "dense", "sparse"
FFNS = "mlp_layer_types"  # of each layer, DENSE or SPARSE, as other families have it
_NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")
_FFN = "feed_forward"
_MODULES = (
    ATTENTION
    | {f"mamba.{m}": name for m, name in mamba.MODULES.items()}
    | {f"mamba.{n}": f"ssm_{n.partition('_')[0]}_norm" for n in _NORMS}
    | {"input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm"}
    | {f"{_FFN}.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    | {f"{_FFN}.router": "ffn_gate_inp"}
    | {f"{_FFN}.experts.{p}_proj": f"ffn_{p}_exps" for p in ("gate", "up", "gate_up", "down")}
)
GGUF = {
    "jamba": GgufArchitecture(
        ARCHITECTURES[0],
        "silu",
        _MODULES,
        arrays={f"mamba.{module}": name for module, name in mamba.ARRAYS.items()},
        keys=mamba.GGUF_KEYS,
        varied=True,
        rotates=False,
        experts="intermediate_size",
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the kind of each layer's sublayers; no layer rotates."""
    ffns = f.items(FFNS, f.n_layers, (DENSE, SPARSE))
    if ffns is None:
        ffns = _periodic(f, "expert_layer", (DENSE, SPARSE))
    if f.count("num_experts", most=moe.MAX_EXPERTS) == 1:
        ffns = [DENSE] * f.n_layers
    return {
        "layer_types": None,
        "no_rope_layers": [0] * f.n_layers,
        "rope_theta": 10000.0,
        MIXERS: _mixers(f),
        FFNS: ffns,
    }


def _mixers(f: Fields) -> list[str]:
    """Return the kind of each layer, FULL or LINEAR; at least one attends."""
    if f.config.get("layer_types") is not None:
        return mamba2.mixers(f)
    kinds, offset = _periodic(f, "attn_layer", (LINEAR, FULL)), "attn_layer_offset"
    if FULL not in kinds:
        f.fail(offset, f"a layer's number, below {f.n_layers}", f.config[offset])
    return kinds


def _periodic(f: Fields, name: str, kinds: tuple[str, str]) -> list[str]:
    """Return the kind of each layer: the second one of each period's at the offset."""
    period = f.count(f"{name}_period")
    offset = f.count(f"{name}_offset", most=period - 1, least=0)
    return [kinds[i % period == offset] for i in range(f.n_layers)]


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    f = c.fields
    inner = f.count("mamba_expand") * c.hidden_size
    scan = mamba.SelectiveScan.of(f, inner, c.rms_norm_eps, _NORMS)
    dense = frozenset(i for i, kind in enumerate(f.config[FFNS]) if kind == DENSE)
    experts = moe.ExpertFields(1, 1, c.intermediate_size)
    if len(dense) < c.n_layers:
        experts = moe.ExpertFields.of(f, "intermediate_size", of_all=True)
    names = replace(moe.NAMES, router="router")
    ffn = moe.ffn(replace(experts, dense=dense), names=names, module=_FFN)
    x = m.embedding()
    for i, mixer in enumerate(f.config[MIXERS]):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm")
        if mixer == FULL:
            h = m.attention(h, i, f"{p}.self_attn")
            x = m.output(h, x, f"{p}.self_attn.o_proj")
        else:
            x = mamba.layer(m, h, x, f"{p}.mamba", scan)
        x = ffn(m, m.norm(x, f"{p}.pre_ff_layernorm"), x, i, f"{p}.{_FFN}")
    return m.head(x)
