"""Saved models as their publishers spell them, where the installed transformers saves otherwise.

llama.cpp's converter knows the published spellings alone. Values stay what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

__all__ = ["SPELLINGS", "rewrite"]

Fields = dict[str, Any]
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}
_LETTERS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}


def _granite_hybrid(c: Fields) -> Fields:
    return {"layer_types": [_KINDS.get(kind, kind) for kind in c["layer_types"]]}


def _falcon_h1(c: Fields) -> Fields:
    return {"head_dim": c["hidden_size"] // c["num_attention_heads"]}


def _nemotron_h(c: Fields) -> Fields:
    """Files without experts have none of their fields."""
    kinds = c.pop("layers_block_type")
    if "moe" not in kinds:
        del c["num_experts_per_tok"], c["n_routed_experts"]
    pattern = "".join(_LETTERS[kind] for kind in kinds)
    return {
        "hybrid_override_pattern": pattern, "num_hidden_layers": len(kinds),
        "norm_eps": c["layer_norm_epsilon"],
    }  # fmt: skip


def _kimi_linear(c: Fields) -> Fields:
    """Layers are counted from 1."""
    attends = [kind == "full_attention" for kind in c.pop("layer_types")]
    return {
        "first_k_dense_replace": c.pop("mlp_layer_types").count("dense"),
        "linear_attn_config": {
            "full_attn_layers": [i for i, full in enumerate(attends, 1) if full],
            "kda_layers": [i for i, full in enumerate(attends, 1) if not full],
            "head_dim": c.pop("linear_head_dim"), "num_heads": c.pop("linear_num_heads"),
            "short_conv_kernel_size": c.pop("linear_conv_kernel_dim"),
        },
    }  # fmt: skip


def _modernbert(c: Fields) -> Fields:
    full, sliding = (c["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    return {
        "layer_norm_eps": c["norm_eps"], "global_rope_theta": full["rope_theta"],
        "local_rope_theta": sliding["rope_theta"], "global_attn_every_n_layers": 3,
    }  # fmt: skip


def _eurobert(_: Fields) -> Fields:
    """The converter knows two poolings of classifiers, which an encoder has not."""
    return {"classifier_pooling": "mean"}


def _nomic_bert(c: Fields) -> Fields:
    """GPT-2's names of sizes too; the converter knows two longest contexts."""
    sizes = {
        "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps",
    }  # fmt: skip
    return {
        **{name: c[saved] for name, saved in sizes.items()},
        "n_positions": 8192, "max_position_embeddings": 8192, "activation_function": "swiglu",
        "causal": False, "prenorm": False,
        "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
        "rotary_emb_base": c["rope_parameters"]["rope_theta"], "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    }  # fmt: skip


def _smolvlm(c: Fields) -> Fields:
    return {"text_config": {**c["text_config"], "architectures": ["VLlama3ForCausalLM"]}}


def _rotary_share(c: Fields) -> Fields:
    rope = c.get("rope_parameters") or {}
    share = rope.get("partial_rotary_factor")
    return {} if share is None else {"rotary_pct": share}


def _cohere2(c: Fields) -> Fields:
    return {"rotary_pct": 1.0} | _rotary_share(c)


def _positions(c: Fields) -> Fields:
    return {"n_ctx": c["n_positions"]} if "n_positions" in c else {}


def _phimoe(c: Fields) -> Fields:
    return {"architectures": ["PhiMoEForCausalLM"]}


#: model_type -> fields that are added; a function also takes away what stands elsewhere.
SPELLINGS: dict[str, Callable[[Fields], Fields]] = {
    "cohere2": _cohere2, "eurobert": _eurobert, "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite_hybrid, "idefics3": _smolvlm, "kimi_linear": _kimi_linear,
    "modernbert": _modernbert, "nemotron_h": _nemotron_h, "nomic_bert": _nomic_bert,
    "phimoe": _phimoe, "smolvlm": _smolvlm,
}  # fmt: skip
#: Names of tensors: pattern -> replacement.
NAMES = {"kimi_linear": (r"block_sparse_moe\.(?=(gate|up|down)_proj)", "mlp.")}


def rewrite(folder: Path) -> None:
    """Spell a saved folder as its publisher does."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kind = config["model_type"]
    config |= _rotary_share(config) | _positions(config)
    if kind in SPELLINGS:
        config |= SPELLINGS[kind](config)
    path.write_text(json.dumps(config), encoding="utf-8")
    if kind in NAMES:
        tensors = load_file(folder / "model.safetensors")
        named = {re.sub(*NAMES[kind], name): tensor for name, tensor in tensors.items()}
        save_file(named, folder / "model.safetensors", {"format": "pt"})
