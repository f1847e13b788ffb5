"""Granite 4: Granite with Mamba-2 in most layers, and an FFN that all tokens use, with or without
experts next to it.

    x = x + r mamba(norm(x)),   or   x = x + r o(attention(q, k, v));
    x = x + r (experts(norm(x)) + shared(norm(x)))

Queries and keys are rotated only if `position_embedding_type` is "rope".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import granitemoe, granitemoeshared, mamba2
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, FFN, READS
from sterna.models.options import AttentionOptions
from sterna.models.qwen3_5 import MIXERS

ARCHITECTURES = ("GraniteMoeHybridForCausalLM",)
DEFAULTS: dict[str, Any] = (
    granitemoe.DEFAULTS
    | mamba2.DEFAULTS
    | {"shared_intermediate_size": 1024, "position_embedding_type": None}
)
_ARRAYS = {f"mamba.{module}": name for module, name in mamba2.ARRAYS.items()}
_MODULES = {f"mamba.{module}": name for module, name in mamba2.MODULES.items()}
_EXPERTS = granitemoe.GGUF["granitemoe"]
GGUF_WITH_EXPERTS = {
    "granitehybrid": replace(
        _EXPERTS,
        architecture=ARCHITECTURES[0],
        modules={**_EXPERTS.modules, **_MODULES},
        arrays=_ARRAYS,
        keys=mamba2.GGUF_KEYS,
        varied=True,
        partial=True,
    )
}
GGUF = {
    "granitehybrid": replace(
        GGUF_WITH_EXPERTS["granitehybrid"],
        experts="",
        modules={**ATTENTION, **READS, **FFN, **_MODULES},
        unsaid={"num_experts": 0},
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the kind of each layer, and that layers without `rope` rotate nothing."""
    rotated = f.config.get("position_embedding_type") == "rope"
    return {
        "layer_types": None,
        MIXERS: mamba2.mixers(f),
        "no_rope_layers": [int(rotated)] * f.n_layers,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    f = c.fields
    space = mamba2.StateSpace.of(f, f.count("mamba_expand") * c.hidden_size)
    attention = AttentionOptions(bias=c.attention_bias, scale=f.factor("attention_multiplier"))
    r = f.factor("residual_multiplier")
    ffn = granitemoeshared.ffn(f)
    x = m.embedding(f.factor("embedding_multiplier"))
    for i, mixer in enumerate(f.config[MIXERS]):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm")
        if mixer == FULL:
            h = m.attention(h, i, f"{p}.self_attn", attention)
            name = f"{p}.self_attn.o_proj"
            x = m.output(h, x, name, bias=c.attention_bias, factor=r)
        else:
            x = mamba2.layer(m, h, x, f"{p}.mamba", space, r)
        h = m.norm(x, f"{p}.post_attention_layernorm")
        x = ffn(m, h, x, i, f"{p}.mlp")
    return m.head(x, factor=1 / f.factor("logits_scaling"))
