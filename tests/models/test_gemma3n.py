"""Gemma 3n as published: its text nested next to towers, and packed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import saved_models
import torch
from helpers import failure
from model_configs import MODELS
from safetensors.torch import load_file, save_file
from saved_answers import edit, logits

from sterna import loading
from sterna.errors import ModelFormatError


def test_a_nested_text(tmp_path: Path) -> None:
    """Its fields and tensors stand next to those of towers, which are skipped with a warning."""
    saved_models.write(tmp_path, MODELS["gemma3n"])
    expected, path = logits(tmp_path), tmp_path / "model.safetensors"
    stored = {k.replace("model.", "model.language_model."): v for k, v in load_file(path).items()}
    stored["model.vision_tower.weight"] = torch.zeros(2)
    save_file(stored, path, {"format": "pt"})
    text = json.loads((tmp_path / "config.json").read_text())
    outer = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    with pytest.warns(RuntimeWarning, match="are skipped, a vision tower"):
        np.testing.assert_array_equal(logits(tmp_path), expected)


def test_a_packed_folder(tmp_path: Path) -> None:
    """Has the same bits."""
    saved_models.write(tmp_path / "m", MODELS["gemma3n"])
    loading.save(loading.load(tmp_path / "m", cached=False), tmp_path / "packed")
    np.testing.assert_array_equal(logits(tmp_path / "packed"), logits(tmp_path / "m"))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"altup_active_idx": 4}, "altup_active_idx"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 1.0]}, "sparsity_pattern"),
        ({"intermediate_size": [96] * 4}, "intermediate_size"),
        ({"laurel_rank": 16}, "laurel"),
        ({"altup_num_inputs": 3}, "altup"),
        ({"hidden_size_per_layer_input": 24}, "hidden_size_per_layer_input"),
    ],
)
def test_a_contradiction_is_refused(fields: dict[str, object], word: str, tmp_path: Path) -> None:
    saved_models.write(tmp_path, MODELS["gemma3n"])
    edit(tmp_path, **fields)
    failure(lambda: loading.load(tmp_path, cached=False), ModelFormatError, word)
