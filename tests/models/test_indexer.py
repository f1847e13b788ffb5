"""DeepSeek V3.2's indexer in whole models: against transformers in float64, in prompts that are cut
anywhere, and its fields of config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
from helpers import assert_same_bits, failure
from model_configs import MODELS
from safetensors.torch import load_file, save_file
from saved_answers import TOKENS, edit, error, logits

from sterna import LLM, loading
from sterna.engine import Engine
from sterna.errors import ModelFormatError

NAMES = ["deepseek-v3.2", "deepseek-v3.2-dense"]


@pytest.mark.parametrize("name", NAMES)
def test_against_float64(name: str, tmp_path: Path) -> None:
    """The choice counts: attention to all positions gives other logits from index_topk on."""
    model = saved_models.write(tmp_path, MODELS[name])
    found = logits(tmp_path)
    with saved_models.in_float64(model):
        expected = saved_models.logits_of(model, TOKENS)
    assert error(found, expected) < 1e-4
    edit(tmp_path, index_topk=len(TOKENS))
    all_, kept = logits(tmp_path), MODELS[name].config["index_topk"]
    assert_same_bits(all_[:kept], found[:kept])
    assert (np.abs(all_ - found)[kept:].max(axis=1) > 0.01 * expected.std()).all()


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "i16", "i8"])
def test_prompts_in_chunks(checkpoint: Callable[[str], Path], kv_dtype: str) -> None:
    """Chunks of any size give the bits of the whole prompt; index_topk is 20, and two other texts
    share the steps."""
    model = loading.load(checkpoint(NAMES[0]))
    engines = [Engine(model, threads=n, kv_dtype=kv_dtype) for n in (1, 3)]
    wanted = engines[0].logits([TOKENS])[0]
    for chunk in (1, 7, 19, 20, 21, 64):
        for engine in engines:
            found = engine.logits([TOKENS, TOKENS[:5], TOKENS[9:]], chunk=chunk)[0]
            assert_same_bits(found, wanted)


def test_where_all_positions_are_chosen(tmp_path: Path) -> None:
    """The bits of the same layers in DeepSeek V3, which has no indexer."""
    saved_models.write(tmp_path, MODELS[NAMES[0]])
    edit(tmp_path, index_topk=64)
    found, file = logits(tmp_path), tmp_path / "model.safetensors"
    rest = {key: x for key, x in load_file(file).items() if ".indexer." not in key}
    save_file(rest, file)
    edit(tmp_path, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3",
         layer_types=None, first_k_dense_replace=3)  # fmt: skip
    assert_same_bits(logits(tmp_path), found)


def test_keys_of_their_own(checkpoint: Callable[[str], Path]) -> None:
    """The cache holds one more key for each of five layers; and the context is the file's."""
    fields = json.loads((checkpoint(NAMES[0]) / "config.json").read_text())
    engine = Engine(loading.load(checkpoint(NAMES[0])), threads=1, kv_dtype="f32")
    assert engine.kv_cache.bytes_per_position == 5 * 4 * (48 + fields["index_head_dim"])
    context = LLM(checkpoint(NAMES[0]), threads=1).info()["context"]
    assert context == fields["max_position_embeddings"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"index_topk": 0}, "index_topk"),
        ({"index_n_heads": 257}, "index_n_heads"),
        ({"index_head_dim": 6}, "index_head_dim"),  # fewer than are rotated
        ({"index_head_dim": 17}, "index_head_dim"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"index_head_dim": 24}, "indexer"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], word: str, tmp_path: Path) -> None:
    saved_models.write(tmp_path, MODELS[NAMES[0]])
    edit(tmp_path, **fields)
    failure(lambda: loading.load(tmp_path), ModelFormatError, word)
