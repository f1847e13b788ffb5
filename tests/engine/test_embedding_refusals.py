"""Texts and files of embedding models that are refused, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import failure
from test_embeddings import CHAIN, LAST, embedder, module

from sterna import LLM
from sterna.checkpoints.sentence_transformers import PROMPTS, SIZES
from sterna.errors import ModelFormatError, RequestError, SternaError, UnsupportedModelError


def test_refused_texts(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """The error for a text that cannot be embedded names the text and the remedy."""
    llm = LLM(embedder(tmp_path / "m", **{SIZES: {"max_seq_length": 100}}))
    failure(lambda: llm.embed(["a", "a" * 5000]), RequestError, "at most 100", "text 1")
    failure(lambda: llm.embed(["a", 3]), RequestError, "text", "string")
    failure(lambda: llm.embed(3), RequestError, "texts")
    failure(
        lambda: llm.embed("a", prompt_name="q"), RequestError, "prompt_name", "query, document", "q"
    )
    failure(lambda: llm.embed("a", prompt_name="query", prompt=""), RequestError, "both")
    failure(lambda: llm.embed("a", prompt=b"x"), RequestError, "prompt")
    failure(lambda: llm.embed("a", pooling="mean"), RequestError, "pooling", "last")
    failure(lambda: llm.embed("a", pooling="max"), RequestError, "pooling")
    for wrong in ("middle", 0, -1, 2.5, None):
        failure(lambda w=wrong: llm.embed("a", truncate=w), RequestError, "truncate")
    failure(lambda: llm.generate("a"), RequestError, "generate", "embed")
    other = LLM(checkpoint("llama-f32"))
    failure(lambda: other.embed("a"), RequestError, "pooling", "last, mean or cls")
    assert np.isclose(np.linalg.norm(other.embed("a", pooling="last")), 1)


REFUSED: dict[str, tuple[str, Any, type[SternaError], tuple[str, ...]]] = {
    "no list": ("modules.json", {}, ModelFormatError, ("modules.json", "array")),
    "no path": ("modules.json", [{"type": "Pooling"}], ModelFormatError, ("type and path",)),
    "dense": (
        "modules.json", [*CHAIN, module(3, "Dense", "3")], UnsupportedModelError, ("Dense",)
    ),
    "no pooling": ("modules.json", CHAIN[:1], UnsupportedModelError, ("Transformer",)),
    "elsewhere": (
        "modules.json", [CHAIN[0], module(1, "Pooling", "../x")], ModelFormatError, ("path", "../x")
    ),
    "two modes": (
        "1_Pooling/config.json", {**LAST, "pooling_mode_mean_tokens": True}, UnsupportedModelError,
        ("pooling_mode", "mean and lasttoken"),
    ),
    "a mode": (
        "1_Pooling/config.json", {"pooling_mode": "max"}, UnsupportedModelError, ("pooling_mode",)
    ),
    "no prompt": (
        "1_Pooling/config.json", {**LAST, "include_prompt": False}, UnsupportedModelError,
        ("include_prompt",),
    ),
    "prompts": (PROMPTS, {"prompts": {"a": 1}}, ModelFormatError, ("prompts",)),
    "default": (PROMPTS, {"default_prompt_name": "a"}, ModelFormatError, ("default_prompt",)),
    "an activation": (
        "2_Dense/config.json", {"in_features": 9, "out_features": 9,
                                "activation_function": "torch.nn.ReLU"},
        UnsupportedModelError, ("activation", "ReLU"),
    ),
    "a residual": (
        "2_Dense/config.json", {"use_residual": True}, UnsupportedModelError, ("use_residual",)
    ),
    "length": (SIZES, {"max_seq_length": 0}, ModelFormatError, ("max_tokens", "0")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files(name: str, tmp_path: Path) -> None:
    """Another chain of modules, or another pooling, is refused and not ignored."""
    file, content, kind, words = REFUSED[name]
    if file.startswith("2_Dense"):
        (tmp_path / "m" / "2_Dense").mkdir(parents=True)
        more = {"chain": [*CHAIN[:2], module(2, "Dense", "2_Dense")]}
    else:
        more = {}
    folder = embedder(tmp_path / "m", **more, **{file: content})
    failure(lambda: LLM(folder), kind, *words)


def test_bidirectional_models_are_refused(tmp_path: Path) -> None:
    """They would be read as causal ones."""
    folder = embedder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    for field, value in (("use_bidirectional_attention", True), ("is_causal", False)):
        (folder / "config.json").write_text(json.dumps({**config, field: value}))
        failure(lambda: LLM(folder), UnsupportedModelError, field)
