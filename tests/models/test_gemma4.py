"""Gemma 4: fields that files spell in two ways, additional tensors, and damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest
import torch
from checkpoint_factory import RECIPES
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file

from sterna import LLM, loading
from sterna.errors import ModelFormatError, NonFiniteError, UnsupportedModelError

GEMMA4 = RECIPES["gemma4"]
TOKENS = np.random.default_rng(3).integers(0, 256, 70).tolist()


def logits(folder: Path) -> np.ndarray:
    """float32 [n, vocab]."""
    return LLM(folder, threads=1, deterministic=True).logits(TOKENS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The recipe's checkpoint."""
    return factory.write(tmp_path / "m", GEMMA4)


def test_towers_beside_a_nested_text(folder: Path, tmp_path: Path) -> None:
    """As published: the text's fields and tensors are nested, and towers are skipped by name. Heads
    of layers without a window are one entry for each, as transformers saves them."""
    expected = logits(folder)
    text = json.loads((folder / "config.json").read_text())
    heads = text.pop("global_head_dim"), text.pop("num_global_key_value_heads")
    entry = dict(zip(("head_dim", "num_key_value_heads"), heads, strict=True))
    text["per_layer_config"] = {str(i): entry for i in (1, 3, 5)}
    config = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text}))
    stored = load_file(folder / "model.safetensors")
    nested = {n.replace("model.", "model.language_model.", 1): w for n, w in stored.items()}
    for tower in ("vision_tower", "audio_tower", "embed_vision"):
        nested[f"model.{tower}.weight"] = torch.zeros(3)
    save_file(nested, folder / "model.safetensors")
    with pytest.warns(RuntimeWarning) as caught:
        got = logits(folder)
    said = " ".join(str(w.message) for w in caught)
    assert all(word in said for word in ("vision_tower", "audio_tower", "embed_vision"))
    assert_same_bits(got, expected)


def test_memory_of_keys(folder: Path) -> None:
    """Of layers that have some, each with its own heads; the last two have none."""
    graph = loading.load(folder).graph
    assert [(h.n_kv_heads, h.head_dim) for h in graph.kv_heads] == [(2, 48), (1, 64)] * 2
    assert graph.kv_bytes("f32") == 4 * 2 * 2 * (2 * 48 + 64)


@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        ("layers.3.layer_scalar", torch.full((1,), torch.nan), NonFiniteError),
        ("embed_tokens_per_layer.weight", None, ModelFormatError),
        ("layers.2.per_layer_projection.weight", torch.zeros(96, 16), ModelFormatError),
        ("layers.1.self_attn.k_norm.weight", torch.ones(48), ModelFormatError),
        ("layers.1.self_attn.v_proj.weight", torch.ones(64, 96), UnsupportedModelError),
    ],
)
def test_damage(folder: Path, name: str, change: torch.Tensor | None, kind: type) -> None:
    """Each is named by its tensor."""
    stored = load_file(folder / "model.safetensors")
    stored.pop(f"model.{name}", None)
    if change is not None:
        stored[f"model.{name}"] = change.float()
    save_file(stored, folder / "model.safetensors")
    failure(lambda: loading.load(folder), kind, name.removesuffix(".weight"))


def test_the_factor_of_the_last_layer(tmp_path: Path) -> None:
    """It cancels in the norm that follows."""
    plain = replace(RECIPES["gemma4-plain"], dtype=torch.float32)
    folder = factory.write(tmp_path / "m", plain)
    before = logits(folder)
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.2.layer_scalar"] *= 2
    save_file(stored, folder / "model.safetensors")
    np.testing.assert_allclose(logits(folder), before, rtol=1e-4, atol=1e-5)
