"""A recipe's folder: config.json, tokenizer and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from checkpoint_factory.recipe import Recipe
from checkpoint_factory.tensors import tensors
from checkpoint_factory.tokenizers import BOS, CHAT_TEMPLATE, EOS, EOT, tokenizer

torch.set_num_threads(1)  # the models are tiny: a second thread would only wait for the first


def config(recipe: Recipe) -> dict[str, Any]:
    """config.json with the keys and spellings of the published files."""
    vocab = tokenizer()
    out: dict[str, Any] = {
        "architectures": [recipe.architecture],
        "bos_token_id": vocab.token_to_id(BOS),
        "eos_token_id": vocab.token_to_id(EOS),
        "hidden_act": "relu2" if recipe.is_bitnet else "silu",
        "hidden_size": recipe.hidden,
        "initializer_range": 0.02,
        "intermediate_size": recipe.intermediate,
        "max_position_embeddings": recipe.max_positions,
        "model_type": recipe.architecture.removesuffix("ForCausalLM").lower(),
        "num_attention_heads": recipe.heads,
        "num_hidden_layers": recipe.layers,
        "num_key_value_heads": recipe.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": recipe.rope_theta,
        "tie_word_embeddings": recipe.tied,
        "torch_dtype": str(recipe.dtype).removeprefix("torch."),
        "use_cache": True,
        "vocab_size": vocab.get_vocab_size(),
    }
    if recipe.head_dim is not None:
        out["head_dim"] = recipe.head_dim
    if recipe.rope_scaling is not None:
        out["rope_scaling"] = recipe.rope_scaling
    if recipe.is_gemma4:
        out["vocab_size_per_layer_input"] = out["vocab_size"]
    if recipe.weights != "float":
        out["quantization_config"] = quantization_config(recipe)
    return out | recipe.config


def quantization_config(recipe: Recipe) -> dict[str, Any]:
    """The three published modes; `divide` is the default and is written without a linear_class."""
    out: dict[str, Any] = {"quant_method": "bitnet", "modules_to_not_convert": None}
    if recipe.weights != "divide":
        out["linear_class"] = "autobitlinear"
        out["quantization_mode"] = "offline" if recipe.weights == "multiply" else "online"
    if recipe.input_norms:
        out |= {"use_rms_norm": True, "rms_norm_eps": 1e-6}
    return out


def write(folder: Path, recipe: Recipe) -> Path:
    """Writes the whole model folder (created if missing) and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config(recipe))
    tok = tokenizer()
    tok.save(str(folder / "tokenizer.json"))
    ids = {name: tok.token_to_id(token) for name, token in (("bos", BOS), ("eos", EOS))}
    stops = [ids["eos"], tok.token_to_id(EOT)]
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": ids["bos"], "eos_token_id": stops, "do_sample": False},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_weights(folder, tensors(recipe), recipe.shards)
    return folder


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One `model.safetensors`, or `shards` numbered files and their index."""
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata)
        return
    names = sorted(weights)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        part = {name: weights[name] for name in names[i::shards]}
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
