"""Fields of config.json that single GGUF architectures have, from the keys of their files.

What is more than a key under another name has a function here. It takes the file, the
architecture's name in it and the common fields, and returns further fields or other values. It
raises ModelFormatError or UnsupportedModelError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.errors import ModelFormatError
from sterna.gguf.encoder_fields import (
    bert_fields,
    dense_fields,
    jina_bert_fields,
    modern_bert_fields,
    scorer_fields,
)
from sterna.gguf.expert_fields import (
    cohere2_moe_fields,
    deepseek2_fields,
    deepseek_fields,
    glm4_moe_fields,
    latent_fields,
    llama4_fields,
    maple_fields,
    minimax_fields,
    phimoe_fields,
)
from sterna.gguf.file import GgufModel
from sterna.gguf.gemma3n_fields import gemma3n_fields
from sterna.gguf.metadata import Metadata, require_neutral
from sterna.gguf.recurrent_fields import (
    delta_net_fields,
    falcon_h1_fields,
    granite_hybrid_fields,
    jamba_fields,
    kimi_fields,
    mamba2_fields,
    mamba_fields,
    mixers,
    nemotron_h_fields,
    qwen3_next_fields,
)
from sterna.models import module_of
from sterna.models.apertus import PARAMETERS, XIELU
from sterna.models.config import FULL, SLIDING
from sterna.models.gguf_architecture import GgufArchitecture

__all__ = ["further_fields"]

_SIGMOID = 2  # of expert_gating_func


def _gpt_oss_fields(_: GgufModel, __: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what no key says: YaRN's ramp ends within pairs."""
    return {"rope_parameters": {**fields["rope_parameters"], "truncate": False}}


def _gemma_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return caps, windows and the scale of scores.

    No key has that scale. It differs in 27B models, which are known by their number of layers, as
    in llama.cpp.
    """
    m = model.metadata
    is_27b = fields["num_hidden_layers"] == {"gemma2": 46, "gemma3": 62}.get(name)
    width = fields["hidden_size"] // fields["num_attention_heads"]
    scalar = width if is_27b else fields["head_dim"]
    found: dict[str, Any] = {"query_pre_attn_scalar": scalar}
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if f"{name}.{cap}" in m:
            found[cap] = m.number(f"{name}.{cap}") or None
    if name != "gemma2":
        found["rope_local_base_freq"] = m.number(f"{name}.rope.freq_base_swa", 10000.0)
    return found


def _qwen3_fields(model: GgufModel, _: str, __: dict[str, Any]) -> dict[str, Any]:
    """Return the class of a model that ranks."""
    return scorer_fields(model, "Qwen3ForSequenceClassification")


def _gemma_embedding_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return Gemma 3's fields, and the layers behind the pooling."""
    return _gemma_fields(model, name, fields) | dense_fields(model, fields)


def _gemma4_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the heads of layers with and without a window, and which layers share keys."""
    m, n = model.metadata, fields["num_hidden_layers"]
    windowed = m.flags(f"{name}.attention.sliding_window_pattern", n)
    heads = m.each(f"{name}.attention.head_count_kv", n)
    widths = m.each(f"{name}.feed_forward_length", n)
    shared = m.integer(f"{name}.attention.shared_kv_layers", 0)
    doubled = [widths[0] * (2 if i >= n - shared else 1) for i in range(n)]
    if widths not in (doubled, [widths[0]] * n):
        rule = f"{widths[0]} in all layers, or twice that in the last {shared}"
        raise m.error(f"{name}.feed_forward_length", rule, widths)
    full = [i for i in range(n) if not windowed[i]]
    without_v = {
        f"blk.{i}.attn_v.weight" not in model.tensors for i in full if i < n - shared
    }  # layers that read others' keys have neither
    if len(without_v) > 1:
        rule = "in all layers without a window that have keys, or in none"
        raise ModelFormatError(model.path, "attn_v.weight", rule, "some")
    of_windows = {heads[i] for i in range(n) if windowed[i]} or {heads[0]}
    if len(of_windows) > 1:
        rule = "the same number in all layers within a window"
        raise m.error(f"{name}.attention.head_count_kv", rule, heads)
    head_dim = m.integer(f"{name}.attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        require_neutral(m, f"{name}.{key}", (head_dim,))
    return {
        "layer_types": [SLIDING if w else FULL for w in windowed],
        "vocab_size_per_layer_input": fields["vocab_size"],
        "pad_token_id": m.integer("tokenizer.ggml.padding_token_id", 0),
        "num_key_value_heads": min(of_windows),
        "head_dim": head_dim,
        "per_layer_config": {
            str(i): {"head_dim": fields["head_dim"], "num_key_value_heads": heads[i]} for i in full
        },
        # A layer without values of its own takes its keys for them.
        "attention_k_eq_v": True in without_v,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": bool(shared) and widths == doubled,
        **({"enable_moe_block": True} if m.integer(f"{name}.expert_count", 0) else {}),
        "hidden_size_per_layer_input": m.integer(f"{name}.embedding_length_per_layer_input", 0),
        "final_logit_softcapping": m.number(f"{name}.final_logit_softcapping", 0.0) or None,
        "rope_parameters": {
            SLIDING: {"rope_theta": m.number(f"{name}.rope.freq_base_swa", 10000.0)},
            FULL: {
                "rope_theta": fields["rope_theta"],
                "partial_rotary_factor": _turning(m, fields.get("rope_factors")),
            },
        },
        "rope_factors": None,
    }


def _turning(m: Metadata, factors: list[float] | None) -> float:
    """Return the share of a head's pairs that turn: their factor is 1, the others' is huge."""
    if factors is None:
        return 1.0
    turning = factors.count(1.0)
    if factors[:turning] != [1.0] * turning or min(factors[turning:], default=1e30) < 1e29:
        rule = "ones, and 1e30 for the pairs behind that do not turn"
        raise m.error("rope_freqs.weight", rule, factors)
    return turning / len(factors)


def _granite_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return Granite's four multipliers."""
    m = model.metadata
    return {
        "attention_multiplier": m.number(f"{name}.attention.scale", fields["head_dim"] ** -0.5),
        "embedding_multiplier": m.number(f"{name}.embedding_scale", 1.0),
        "logits_scaling": m.number(f"{name}.logit_scale", 1.0),
        "residual_multiplier": m.number(f"{name}.residual_scale", 1.0),
    }


def _granite_moe_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return Granite's multipliers, and the width of a shared expert, which another class has."""
    found, key = _granite_fields(model, name, fields), f"{name}.expert_shared_feed_forward_length"
    if not (width := model.metadata.integer(key, 0)):
        return found
    shared = {"architectures": ["GraniteMoeSharedForCausalLM"], "shared_intermediate_size": width}
    return found | shared


def _lfm2_moe_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the layers' kinds, and whether a router has a bias; its scores are sigmoids."""
    require_neutral(model.metadata, f"{name}.expert_gating_func", (_SIGMOID,))
    biased = any(tensor.endswith(".exp_probs_b.bias") for tensor in model.tensors)
    return {**_lfm2_fields(model, name, fields), "use_expert_bias": biased}


def _minicpm_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the multipliers; refuse older files, which leave them to their readers."""
    m = model.metadata
    keys = ("embedding_scale", "residual_scale", "logit_scale")
    embedding, residual, logits = (m.number(f"{name}.{key}") for key in keys)
    if not logits:
        raise m.error(f"{name}.logit_scale", "a number that is not 0", logits)
    return {
        "scale_emb": embedding,
        "scale_depth": residual * fields["num_hidden_layers"] ** 0.5,
        "dim_model_base": fields["hidden_size"] / logits,
    }


def _mistral3_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return rotations with Ministral 3's scale of queries."""
    rope, beta = fields["rope_parameters"], f"{name}.attention.temperature_scale"
    scale = {"llama_4_scaling_beta": model.metadata.number(beta, 0.0)}
    return {"rope_parameters": {"rope_theta": fields["rope_theta"], **rope, **scale}}


def _olmo_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Return the limit of q, k and v; 0 is none."""
    return {"clip_qkv": model.metadata.number(f"{name}.attention.clamp_kqv", 0.0) or None}


def _apertus_fields(model: GgufModel, _: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the activation in each layer."""
    m, n = model.metadata, fields["num_hidden_layers"]
    return {XIELU: {name: m.numbers(f"xielu.{name}", n).tolist() for name in PARAMETERS}}


def _mpt_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Return the limit of q, k and v, 0 being none, and ALiBi's largest bias."""
    m = model.metadata
    most = m.number(f"{name}.attention.max_alibi_bias", 0.0)
    clip = m.number(f"{name}.attention.clamp_kqv", 0.0)
    return {
        "attn_config": {"clip_qkv": clip or None, "alibi": most != 0, "alibi_bias_max": most or 8.0}
    }


def _falcon_fields(model: GgufModel, _: str, __: dict[str, Any]) -> dict[str, Any]:
    """Return how many norms a layer has: one is Falcon 7B's, two are Falcon 40B's."""
    two = "blk.0.attn_norm_2.weight" in model.tensors
    return {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1 + two}


def _olmo2_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return OLMo 3's fields for a file with a window; only layers without one are scaled."""
    if not fields["sliding_window"]:
        return {}
    theta = fields["rope_theta"]
    swa = model.metadata.number(f"{name}.rope.freq_base_swa", theta)
    rope = {FULL: {"rope_theta": theta, **fields["rope_parameters"]}, SLIDING: {"rope_theta": swa}}
    return {"architectures": ["Olmo3ForCausalLM"], "rope_parameters": rope}


def _glm4_fields(model: GgufModel, name: str, _: dict[str, Any]) -> dict[str, Any]:
    """Refuse rotations of an image's axes."""
    require_neutral(model.metadata, f"{name}.rope.dimension_sections", ())
    return {}


def _lfm2_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return which layers have a convolution: those without KV heads."""
    found = mixers(model, name, fields, "conv")
    return {**found, "block_auto_adjust_ff_dim": False}


Further = Callable[[GgufModel, str, dict[str, Any]], dict[str, Any]]


def _both(first: Further, second: Further) -> Further:
    """Return what two functions return."""

    def fields_of(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {**first(model, name, fields), **second(model, name, fields)}

    return fields_of


_FURTHER: dict[str, Further] = {
    "bert": bert_fields,
    "gemma-embedding": _gemma_embedding_fields,
    "modern-bert": modern_bert_fields,
    "jina-bert-v2": jina_bert_fields,
    "jina-bert-v3": bert_fields,
    "nomic-bert": bert_fields,
    "apertus": _apertus_fields,
    "cohere2moe": cohere2_moe_fields,
    "deepseek2": deepseek2_fields,
    "deepseek32": _both(latent_fields, deepseek_fields),
    "dots1": deepseek_fields,
    "exaone-moe": deepseek_fields,
    "falcon": _falcon_fields,
    "falcon-h1": falcon_h1_fields,
    "gemma2": _gemma_fields,
    "gemma3": _gemma_fields,
    "gemma3n": gemma3n_fields,
    "gemma4": _gemma4_fields,
    "glm4": _glm4_fields,
    "glm4moe": glm4_moe_fields,
    "gpt-oss": _gpt_oss_fields,
    "granite": _granite_fields,
    "granitehybrid": _both(granite_hybrid_fields, _granite_fields),
    "granitemoe": _granite_moe_fields,
    "kimi-linear": _both(latent_fields, _both(deepseek_fields, kimi_fields)),
    "lfm2": _lfm2_fields,
    "lfm2moe": _lfm2_moe_fields,
    "llama4": llama4_fields,
    "jamba": jamba_fields,
    "mamba": mamba_fields,
    "mamba2": mamba2_fields,
    "maple": maple_fields,
    "minicpm": _minicpm_fields,
    "minicpm3": latent_fields,
    "minimax-m2": minimax_fields,
    "mistral3": _mistral3_fields,
    "mpt": _mpt_fields,
    "olmo": _olmo_fields,
    "olmo2": _olmo2_fields,
    "nemotron_h": nemotron_h_fields,
    "nemotron_h_moe": _both(deepseek_fields, nemotron_h_fields),
    "phimoe": phimoe_fields,
    "qwen3": _qwen3_fields,
    "qwen3next": qwen3_next_fields,
    "qwen35": delta_net_fields,
    "qwen35moe": delta_net_fields,
}


def further_fields(
    model: GgufModel, name: str, kind: GgufArchitecture, fields: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields that an architecture has in addition to the common ones.

    A key of `kind.keys` has the type of its field's default in the model's module.
    """
    found = dict(kind.unsaid)
    found |= {own: fields[usual] for usual, own in kind.renamed.items()}
    if kind.qkv_bias:
        found[kind.qkv_bias] = "blk.0.attn_q.bias" in model.tensors
    defaults = module_of({"architectures": [kind.architecture]}, model.path).DEFAULTS
    m = model.metadata
    readers: dict[type, Callable[[str], object]] = {
        bool: m.boolean,
        int: m.integer,
        float: m.number,
    }
    for key, field in kind.keys.items():
        found[field] = readers[type(defaults[field])](f"{name}.{key}")
    return found | (_FURTHER[name](model, name, fields) if name in _FURTHER else {})
