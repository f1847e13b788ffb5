"""Tokenizer, chat template and generation settings from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.checkpoints.assets import FileAssets
from sterna.errors import warn
from sterna.gguf.architectures import ARCHITECTURES_OF
from sterna.gguf.file import GgufModel
from sterna.gguf.metadata import Metadata
from sterna.gguf.tensor_types import FLOAT_TYPES
from sterna.gguf.vocabulary import Vocabulary

__all__ = ["assets_of"]

#: GGUF files of BitNet b1.58 2B hold a template that is not the model's.
BITNET_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)


def assets_of(model: GgufModel, config: dict[str, Any]) -> FileAssets:
    """Read the tokenizer, the chat template and the generation settings from the metadata."""
    m = model.metadata
    vocabulary = Vocabulary(m)
    bos, tokens = vocabulary.bos_id, vocabulary.tokens
    settings: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    if bos is not None:
        settings["bos_token"] = tokens[bos]
    if "tokenizer.ggml.eos_token_id" in m and vocabulary.eos_ids:
        settings["eos_token"] = tokens[m.integer("tokenizer.ggml.eos_token_id")]
    template = _chat_template(m, "<|eot_id|>" in tokens)
    if template is not None:
        settings["chat_template"] = template
    generation: dict[str, Any] = {"eos_token_id": list(vocabulary.eos_ids), **_sampling(m)}
    if bos is not None:
        generation["bos_token_id"] = bos
    if (key := "tokenizer.ggml.suppress_tokens") in m:
        ids = m.array(key)
        if ids.dtype.kind not in "iu":
            raise m.error(key, "token ids", "other numbers")
        generation["suppress_tokens"] = ids[ids >= 0].tolist()
    _warn_of_floats(model)
    return FileAssets(model.path, config, settings, generation, vocabulary.backend)


def _chat_template(m: Metadata, has_eot: bool) -> str | list[dict[str, str]] | None:
    """Return the file's template, or all if it has several; BitNet files get the model's own."""
    if m.text("general.architecture").startswith("bitnet") and has_eot:
        return BITNET_TEMPLATE
    key = "tokenizer.chat_template"
    default = m.text(key) if key in m else None
    named = m.texts("tokenizer.chat_templates") if "tokenizer.chat_templates" in m else []
    if not named:
        return default
    several = [{"name": name, "template": m.text(f"{key}.{name}")} for name in named]
    if default is not None:
        several.append({"name": "default", "template": default})
    return several


def _sampling(m: Metadata) -> dict[str, Any]:
    """Return the recommended sampling options, in the words of generation_config.json."""
    keys = {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
    settings: dict[str, Any] = {}
    for key, name in keys.items():
        if f"general.sampling.{key}" in m:
            number = m.number(f"general.sampling.{key}")
            # The shortest number that is this float32: files mean 0.7, not 0.699999988
            settings[name] = int(number) if key == "top_k" else float(str(np.float32(number)))
    return settings


def _warn_of_floats(model: GgufModel) -> None:
    info = model.tensors.get("blk.0.ffn_down.weight")
    kind = ARCHITECTURES_OF[model.metadata.text("general.architecture")]
    if info and info.dtype in FLOAT_TYPES and kind.architecture == "BitNetForCausalLM":
        warn(
            f"{model.path}: layers are {info.dtype}: files of this kind made from the packed model "
            "are known to be scaled wrongly; prefer an I2_S file, or the safetensors"
        )
