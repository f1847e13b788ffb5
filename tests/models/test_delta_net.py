"""Families of gated DeltaNet in their authors' layout, where transformers saves another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import saved_models
from model_configs import MODELS, Saved
from safetensors.torch import load_file, save_file
from saved_answers import TOKENS, error, logits

from sterna import loading


def test_convolutions_of_other_widths(tmp_path: Path) -> None:
    """OLMo hybrid's values are twice as wide as its keys, as transformers does not save them."""
    row = MODELS["olmo-hybrid"]
    saved = Saved(row.name, {**row.config, "linear_value_head_dim": 32})
    model = saved_models.write(tmp_path, saved)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    for name, tensor in model.state_dict().items():
        if name.endswith(".conv1d.weight"):
            parts = zip("qkv", tensor.split([64, 64, 128]), strict=True)
            renamed = {name.replace("conv1d", f"{p}_conv1d"): part for p, part in parts}
            stored |= {key: part.contiguous().clone() for key, part in renamed.items()}
    save_file(stored, path, {"format": "pt"})
    assert error(logits(tmp_path), saved_models.logits_of(model, TOKENS)) < 1e-5 * 5


def test_norms_of_attention_as_published(tmp_path: Path) -> None:
    """transformers saves the second one by the name that recurrent layers have."""
    saved_models.write(tmp_path, MODELS["olmo-hybrid"])
    expected, path = logits(tmp_path), tmp_path / "model.safetensors"
    stored = load_file(path)
    name = "model.layers.3.feedforward_layer_norm.weight"
    stored[name.replace("feedforward_layer_norm", "post_attention_layernorm")] = stored.pop(name)
    save_file(stored, path, {"format": "pt"})
    np.testing.assert_array_equal(logits(tmp_path), expected)


@pytest.mark.parametrize("name", ["olmo-hybrid", "kimi-linear"])
def test_a_packed_folder(name: str, tmp_path: Path) -> None:
    """Has the same bits."""
    saved_models.write(tmp_path / "m", MODELS[name])
    loading.save(loading.load(tmp_path / "m", cached=False), tmp_path / "packed")
    np.testing.assert_array_equal(logits(tmp_path / "packed"), logits(tmp_path / "m"))


def test_kimi_as_published(tmp_path: Path) -> None:
    """Sizes of recurrent layers stand in a field, and dense FFNs have their own name."""
    saved_models.write(tmp_path, MODELS["kimi-linear"])
    expected, path = logits(tmp_path), tmp_path / "model.safetensors"
    dense = "layers.0.block_sparse_moe."
    stored = {k.replace(dense, "layers.0.mlp."): v for k, v in load_file(path).items()}
    save_file(stored, path, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    for field in ("layer_types", "mlp_layer_types"):
        del config[field]
    config["linear_attn_config"] = {
        "head_dim": config.pop("linear_head_dim"), "num_heads": config.pop("linear_num_heads"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
        "full_attn_layers": [2, 5], "kda_layers": [1, 3, 4],
    }  # fmt: skip
    config |= {"first_k_dense_replace": 1, "moe_layer_freq": 1, "mla_use_nope": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(logits(tmp_path), expected)
