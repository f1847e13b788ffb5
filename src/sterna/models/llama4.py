"""Llama 4 (Scout, Maverick), text only: experts in all layers or every other one, and one that all
tokens use; no rotations in every fourth layer.

    x = x + o(attention(norm(rope(q)), norm(rope(k)), v))
    x = x + experts(norm(x)) + shared(norm(x))

The sigmoid of a chosen logit multiplies its expert's input. Attention is in chunks of 8,192
positions where there are rotations, and scores grow from there on where there are none, so that a
context ends with the first chunk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import moe
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, READS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm
from sterna.weights.sources import Stacking

ARCHITECTURES = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192}
    | {"intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40}
    | {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}
    | {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "attention_bias": False}
    | {"num_experts_per_tok": 1, "num_experts": 16, "interleave_moe_layer_step": 1}
    | {"use_qk_norm": True, "no_rope_layer_interval": 4, "attention_chunk_size": 8192}
    | {"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1}
)
MODULE = "feed_forward"
KINDS = (("", ""), ("experts.", "_exps"), ("shared_expert.", "_shexp"))
GGUF = {
    "llama4": GgufArchitecture(
        ARCHITECTURES[0],
        modules={
            **ATTENTION,
            **READS,
            f"{MODULE}.router": "ffn_gate_inp",
            f"{MODULE}.experts.gate_up_proj": "ffn_gate_up_exps",
            **{
                f"{MODULE}.{prefix}{part}_proj": f"ffn_{part}{suffix}"
                for prefix, suffix in KINDS
                for part in ("gate", "up", "down")
            },
        },
        experts="intermediate_size",
        keys={"interleave_moe_layer_step": "interleave_moe_layer_step"},
    )
}
PREFIXES = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head."}
SKIPPED = {
    "vision_model.": "a vision tower: Sterna runs only the text",
    "multi_modal_projector.": "of a vision tower: Sterna runs only the text",
}
NAMES = moe.Names(router="router", shared_gate="")
STACKING = Stacking(transposed=True)
WIDTH = "expert_width"  # a field of ours


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, which layers rotate, widths, and a context's end."""
    text = f.mapping("text_config")
    t = f.having({**f.config, **text})
    step = t.count("no_rope_layer_interval")
    rotated = [int((i + 1) % step != 0) for i in range(t.n_layers)]
    if t.config.get("no_rope_layers"):
        rotated = t.items("no_rope_layers", t.n_layers, (0, 1)) or rotated
    ends = list[int]()
    if any(rotated) and t.config["attention_chunk_size"] is not None:
        ends.append(t.count("attention_chunk_size"))
    # Published files have a number there.
    if not all(rotated) and t.config["attn_temperature_tuning"] not in (None, False, 0):
        ends.append(t.count("floor_scale") - 1)
    return {
        **text,
        "no_rope_layers": rotated,
        "layer_types": None,
        "sliding_window": min(ends, default=None),  # which bounds a context, without layer_types
        "rope_interleaved": True,
        "intermediate_size": t.count("intermediate_size_mlp"),
        WIDTH: t.count("intermediate_size"),
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    norms = QKNorm(weight=False, after_rotation=True) if c.fields.flag("use_qk_norm") else None
    options = AttentionOptions(bias=c.attention_bias)
    ffn = moe.ffn(_experts(c.fields), names=NAMES, module=MODULE, stacking=STACKING)
    x = m.embedding()
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm")
        own = replace(options, qk_norm=norms if c.attention[i].rotary else None)
        h = m.attention(h, i, f"{p}.self_attn", own)
        x = m.output(h, x, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        h = m.norm(x, f"{p}.post_attention_layernorm")
        x = ffn(m, h, x, i, p)
    return m.head(x)


def _experts(f: Fields) -> moe.ExpertFields:
    """Read the experts, and the layers that have none."""
    step, listed = f.count("interleave_moe_layer_step"), f.config.get("moe_layers")
    if listed is None:
        listed = list(range(step - 1, f.n_layers, step))
    if not isinstance(listed, list) or any(type(i) is not int or i < 0 for i in listed):
        f.fail("moe_layers", "a list of layers' numbers", listed)
    experts = moe.ExpertFields.of(f, WIDTH, of_all=True)
    return replace(
        experts,
        shared=experts.width,
        scoring=Scoring("sigmoid"),
        scales_inputs=True,
        dense=frozenset(range(f.n_layers)) - {*listed},
    )
