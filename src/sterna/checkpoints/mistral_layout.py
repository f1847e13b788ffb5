"""Mistral's own layout of a checkpoint: params.json and consolidated.safetensors.

It is read as the folder in the Hugging Face layout would be that the same model has: with other
names, and with the rows of q and k in the order of rotations of halves, where Mistral's own rotate
neighbours.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sterna.errors import ModelFormatError, shown, warn
from sterna.files.jsonfile import MAX_CONFIG_BYTES, load_json_object
from sterna.files.known_fields import KnownFields

__all__ = ["PARAMS", "config_of", "name_of", "rotates"]

PARAMS = "params.json"
#: Names of fields -> in config.json.
_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "tied_embeddings": "tie_word_embeddings",
    "sliding_window": "sliding_window",
    "max_seq_len": "max_position_embeddings",
    "max_position_embeddings": "max_position_embeddings",
}
_NEEDED = ("dim", "n_layers", "hidden_dim", "n_heads", "n_kv_heads", "head_dim", "vocab_size")
_TOWERS = ("vision_encoder", "multimodal")
FIELDS = KnownFields().plus(
    read=" ".join([*_NAMES, *_TOWERS]),
    without_effect="model_type dtype use_cache max_batch_size",
    refused="moe quantization use_biases yarn",
    neutral={"causal": (True,)},
)
#: Where a file has none, as in vLLM; and the base of rotations of Mistral's first models.
DEFAULTS: dict[str, float] = {
    "max_position_embeddings": 128_000,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
}
_OUTER = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight")


def config_of(folder: Path) -> dict[str, Any]:
    """Return the config.json that a folder with a params.json would have.

    A tower is left out, with a warning. Raises UnsupportedModelError for a field that Sterna does
    not apply, ModelFormatError for one that is missing.
    """
    file = folder / PARAMS
    params = load_json_object(file, MAX_CONFIG_BYTES)
    remedy = "download the model in the layout of Hugging Face, which says it in other words"
    FIELDS.check(params, file, remedy=remedy)
    for name in _NEEDED:
        if params.get(name) is None:
            raise ModelFormatError(file, name, "a number", "none")
    if params.get("causal") is False:
        raise ModelFormatError(file, "causal", "true, or none", "false")
    if towers := [name for name in _TOWERS if params.get(name)]:
        warn(
            f"{file}: {shown(towers[0])} is left out: Sterna runs only the text of this layout; "
            "the layout of Hugging Face has its tower"
        )
    translated = {to: params[name] for name, to in _NAMES.items() if params.get(name) is not None}
    own = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu"}
    return {**own, "sliding_window": None, **DEFAULTS, **translated}


def name_of(stored: str) -> str:
    """Return a tensor's name in the layout of Hugging Face."""
    inside = _LAYER.fullmatch(stored)
    if inside and inside[2] in _INNER:
        return f"model.layers.{inside[1]}.{_INNER[inside[2]]}.weight"
    return _OUTER.get(stored, stored)


def rotates(name: str) -> bool:
    """Whether a tensor, by Hugging Face's name, has rows in the order of other rotations."""
    return name.endswith((".self_attn.q_proj.weight", ".self_attn.k_proj.weight"))
