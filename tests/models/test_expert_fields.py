"""Fields of config.json for experts and their router, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
from helpers import failure
from model_configs import MODELS
from safetensors.torch import load_file, save_file
from saved_answers import edit, logits

from sterna import loading
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.models import module_of
from sterna.models.config import TransformerConfig
from sterna.models.moe import ExpertFields


def fields_of(name: str, **more: Any) -> ExpertFields:
    """Of DeepSeek's kind, of a row's class."""
    saved, file = MODELS[name], Path("config.json")
    given = {"architectures": [saved.name], "num_hidden_layers": 5, **saved.config, **more}
    config = TransformerConfig.of(module_of(given, file), given, file)
    return ExpertFields.of_deepseek(config.fields)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"n_group": 3}, "n_group"),
        ({"n_group": 8}, "n_group"),
        ({"n_group": 4, "topk_group": 5}, "topk_group"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "topk_group"),
        ({"num_experts_per_tok": 9}, "n_routed_experts"),
        ({"first_k_dense_replace": 6}, "first_k_dense_replace"),
        ({"n_shared_experts": -1}, "n_shared_experts"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], word: str) -> None:
    failure(lambda: fields_of("glm4-moe-norms", **fields), ModelFormatError, word)


def test_null_is_none() -> None:
    """Of groups, shared experts and dense layers."""
    nothing = dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"))
    how = fields_of("glm4-moe-norms", **nothing)
    assert (how.shared, how.dense, how.scoring.groups) == (0, frozenset(), 1)


def test_layers_of_kexaone_that_predict_are_skipped(tmp_path: Path) -> None:
    """The published file has them under a name of their own."""
    saved_models.write(tmp_path, MODELS["exaone-moe"])
    expected, file = logits(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "mtp.fc.weight": tensors["lm_head.weight"].clone()}, file)
    assert (logits(tmp_path) == expected).all()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cohere2-moe", {"expert_selection_fn": "tanh"}),
        ("cohere2-moe", {"shared_expert_combination_strategy": "max"}),
        ("ernie4.5-moe", {"use_bias": True}),
        ("olmoe", {"clip_qkv": 8.0}),
        ("hunyuan-moe-lists", {"moe_topk": [1, 1, 1, 1, 2]}),
        ("hunyuan-moe-lists", {"moe_intermediate_size": 64}),
    ],
)
def test_variants_are_refused(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    saved_models.write(tmp_path, MODELS[name])
    edit(tmp_path, **fields)
    failure(lambda: loading.load(tmp_path, cached=False), UnsupportedModelError, *fields)


def test_a_layer_that_predicts_is_skipped(tmp_path: Path) -> None:
    """With a warning, where config.json says that there is one; else it is refused."""
    saved_models.write(tmp_path, MODELS["glm4-moe"])
    expected, path = logits(tmp_path), tmp_path / "model.safetensors"
    stored = load_file(path)
    save_file({**stored, "model.layers.5.enorm.weight": stored["model.norm.weight"].clone()}, path)
    assert json.loads((tmp_path / "config.json").read_text())["num_nextn_predict_layers"] == 1
    with pytest.warns(RuntimeWarning, match=r"1 tensors model.layers.5.\* .* several tokens"):
        np.testing.assert_array_equal(logits(tmp_path), expected)
    edit(tmp_path, num_nextn_predict_layers=0)
    failure(lambda: loading.load(tmp_path, cached=False), UnsupportedModelError, "layers.5.enorm")


@pytest.mark.parametrize("fields", [{"attn_temperature_tuning": 4}, {"attention_chunk_size": 64}])
def test_a_context_of_llama_4_ends_with_its_first_chunk(fields: dict[str, Any]) -> None:
    """Published files say how scores grow by a number."""
    file = Path("config.json")
    given = {"architectures": ["Llama4ForCausalLM"], "floor_scale": 100, **fields}
    config = TransformerConfig.of(module_of(given, file), given, file)
    assert config.max_position == config.most_positions == fields.get("attention_chunk_size", 99)
    whole = {**given, "no_rope_layers": [1] * 48, "attention_chunk_size": None}
    config = TransformerConfig.of(module_of(whole, file), whole, file)
    assert config.max_position == 131072
