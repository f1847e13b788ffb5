"""A context beyond the model's: with a warning, or by a scaling that is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
from helpers import failure
from model_configs import MODELS
from saved_answers import edit, error

from sterna import LLM
from sterna.errors import SternaError

LONG = np.random.default_rng(2).integers(0, 256, 150).tolist()


def longer(folder: Path, **options: Any) -> LLM:
    """With float32 keys."""
    return LLM(folder, cache=False, threads=1, kv_dtype="f32", deterministic=True, **options)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "olmo3", "gemma3"])
def test_more_positions_than_the_model_has(name: str, tmp_path: Path) -> None:
    """With a warning, and transformers' logits, which knows no bound; windows hold there, too."""
    saved = MODELS[name]
    saved = replace(saved, config=saved.config | {"max_position_embeddings": 20})
    model = saved_models.write(tmp_path, saved)
    failure(lambda: longer(tmp_path).logits(LONG), SternaError, "context of 20")
    with pytest.warns(RuntimeWarning, match="context: 160 positions are more than the 20"):
        llm = longer(tmp_path, context=160)
    assert error(llm.logits(LONG), saved_models.logits_of(model, LONG)) < 1e-3


@pytest.mark.parametrize(
    ("name", "scaling", "parameters"),
    [
        ("llama", "yarn:8", {"rope_type": "yarn", "factor": 8.0}),
        ("llama", "linear:8", {"rope_type": "linear", "factor": 8.0}),
        ("llama-llama3", "yarn:8", {"rope_type": "yarn", "factor": 8.0}),
        ("olmo3-layer-types", "linear:8", {"rope_type": "linear", "factor": 8.0}),
    ],
)
def test_a_scaling_that_is_asked_for(
    name: str, scaling: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    """Gives the context and the logits of a config.json that says it, and another digest."""
    saved = MODELS[name]
    saved = replace(saved, config=saved.config | {"max_position_embeddings": 20})
    saved_models.write(tmp_path, saved)
    plain = longer(tmp_path).engine.model.digest
    llm = longer(tmp_path, rope_scaling=scaling)
    assert llm.context == (512 if name == "llama-llama3" else 160)  # whose first context is 64
    assert llm.engine.model.digest != plain
    got = llm.logits(LONG)

    given = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    full = given.get("full_attention", given)
    said = {"rope_theta": full["rope_theta"], **parameters}
    if parameters["rope_type"] == "yarn":
        said["original_max_position_embeddings"] = full.get("original_max_position_embeddings", 20)
    said = {**given, "full_attention": said} if "full_attention" in given else said
    edit(tmp_path, rope_parameters=said, max_position_embeddings=160)
    np.testing.assert_array_equal(got, longer(tmp_path).logits(LONG))


@pytest.mark.parametrize("scaling", ["yarn", "yarn:", "yarn:1", "ntk:4", "linear:x", 4, "yarn:nan"])
def test_scalings_that_are_none(scaling: object, tmp_path: Path) -> None:
    """The message has the form."""
    saved_models.write(tmp_path, MODELS["llama"])
    failure(lambda: longer(tmp_path, rope_scaling=scaling), SternaError, "rope_scaling", "FACTOR")
