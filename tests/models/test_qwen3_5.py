"""Qwen3.5: its checkpoints in every dress, bad input.

Logits against transformers: test_against_transformers.py; against the words' definitions:
test_recurrent.py; over units, threads, chunks and batches: test_determinism.py, test_digests.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_5, RECIPES, Recipe, config, tensors, write
from helpers import assert_same_bits, failure
from safetensors.torch import save_file

from sterna import loading
from sterna.convert import convert
from sterna.engine import PAGE, Engine, Sequence
from sterna.errors import ModelFormatError, UnsupportedModelError

NAMES = [name for name in RECIPES if name.startswith("qwen3_5")]
PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 256, 3 * PAGE + 5)]


def engine(model: loading.Model, **options: Any) -> Engine:
    return Engine(model, threads=2, kv_dtype="f32", **options)


def tokens_of(e: Engine, sequence: Sequence, tokens: list[int]) -> np.ndarray:
    """Logits after the last of the tokens, which follow what the sequence has."""
    return e.prefill(sequence, tokens).copy()


# --------------------------------------------------------------------------------- checkpoints


def wrapped(folder: Path, recipe: Recipe) -> Path:
    """The recipe's text in a checkpoint with a vision tower and layers that predict ahead."""
    write(folder, recipe)
    text = config(recipe)
    nested = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": text.pop("tie_word_embeddings"), "text_config": text,
        "vision_config": {"depth": 1}, "image_token_id": 3,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(nested))
    weights = {
        name.replace("model.", "model.language_model.", 1) if "model." in name else name: w
        for name, w in tensors(recipe).items()
    }
    weights["model.visual.other.weight"] = torch.zeros(8, 3)  # of a kind that is not known
    weights["mtp.norm.weight"] = torch.zeros(recipe.hidden)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_vision_tower_is_skipped_and_said_so(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The text alone has the bits that it has in a checkpoint of its own."""
    with pytest.warns(RuntimeWarning) as told:
        model = loading.load(wrapped(tmp_path / "m", QWEN3_5))
    lines = [str(w.message) for w in told]
    assert any("1 tensors model.visual.*" in line and "only the text" in line for line in lines)
    assert any("1 tensors mtp.*" in line for line in lines)
    expected = engine(loading.load(checkpoint("qwen3_5"))).logits([PROMPT])[0]
    assert_same_bits(engine(model).logits([PROMPT])[0], expected)


@pytest.mark.filterwarnings("ignore:.*are skipped")
@pytest.mark.parametrize("format", [None, "i8", "q4_0"])
def test_packed_directories(format: str | None, tmp_path: Path) -> None:
    """Saved, converted and loaded again: the bits of the checkpoint, nested or not."""
    source = wrapped(tmp_path / "m", QWEN3_5)
    model = loading.load(source, format=format)
    expected = engine(model).logits([PROMPT])[0]
    loading.save(model, tmp_path / "saved")
    convert(source, tmp_path / "converted", format)
    for folder in ("saved", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], expected)


# ----------------------------------------------------------------------------------- bad input

ROPE = QWEN3_5.config["rope_parameters"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"layer_types": ["full_attention"] * 3}, ModelFormatError, ("layer_types", "4 items")),
        (
            {"layer_types": ["full_attention", "mamba", "linear_attention", "linear_attention"]},
            UnsupportedModelError, ("layer_types", "linear_attention, full_attention", "mamba"),
        ),
        ({"layer_types": ["linear_attention"] * 4}, ModelFormatError, ("at least one full",)),
        (
            {"rope_parameters": {**ROPE, "mrope_section": [2, 2, 1]}},
            ModelFormatError, ("mrope_section", "sum is 4", "2, 2, 1"),
        ),
        (
            {"rope_parameters": {**ROPE, "mrope_section": [4]}},
            ModelFormatError, ("mrope_section", "three whole numbers"),
        ),
        (
            {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.5}},
            ModelFormatError, ("partial_rotary_factor", "head_dim=32", "1.5"),
        ),
        ({"linear_num_value_heads": 5}, ModelFormatError, ("multiple of linear_num_key_heads=2",)),
        ({"linear_num_value_heads": 4}, ModelFormatError, ("in_proj_qkv", "[160, 96]")),
        ({"linear_key_head_dim": 20}, ModelFormatError, ("in_proj_qkv", "[176, 96]", "[192, 96]")),
        ({"linear_conv_kernel_dim": 3}, ModelFormatError, ("conv1d", "[192, 1, 3]", "[192, 1, 4]")),
        ({"linear_conv_kernel_dim": 17}, ModelFormatError, ("linear_conv_kernel_dim", "1..16")),
        ({"attn_output_gate": False}, UnsupportedModelError, ("attn_output_gate", "False")),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)  # fmt: skip
def test_bad_input(
    change: dict[str, Any], kind: type[Exception], words: tuple[str, ...], tmp_path: Path
) -> None:
    """One line that names the file, the field or tensor, the rule and the value."""
    folder = write(tmp_path / "m", QWEN3_5)
    (folder / "config.json").write_text(json.dumps({**config(QWEN3_5), **change}))
    failure(lambda: loading.load(folder), kind, str(folder), *words)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*are skipped")
def test_errors_name_a_tensor_as_its_file_does(tmp_path: Path) -> None:
    """Of a checkpoint that nests the text."""
    folder = wrapped(tmp_path / "m", QWEN3_5)
    nested = json.loads((folder / "config.json").read_text())
    nested["text_config"]["linear_value_head_dim"] = 12
    (folder / "config.json").write_text(json.dumps(nested))
    name = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight"
    failure(lambda: loading.load(folder), ModelFormatError, name, "[168, 96]", "[192, 96]")
