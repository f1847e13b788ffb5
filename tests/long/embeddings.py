"""`sterna embed` beside sentence-transformers, on small checkpoints in its layout.

Last token and mean, Qwen3's graph and Gemma 3's, and BitNet layers with a norm before each, which
round their inputs to int8: there a rounding falls the other way now and then.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_factory import EOS, RECIPES, Recipe
from click.testing import CliRunner
from test_embeddings import LAST, MEAN, QUERY, TEXTS, embedder

from sterna.cli import main

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers"
)
CASES: dict[str, tuple[Recipe, dict[str, object]]] = {
    "qwen3": (replace(RECIPES["qwen3"], dtype=torch.float32), LAST),
    "qwen3-mean": (replace(RECIPES["qwen3"], dtype=torch.float32), MEAN),
    "gemma3": (replace(RECIPES["gemma3"], dtype=torch.float32), LAST),
    "bitnet": (replace(RECIPES["qwen3"], weights="online", input_norms=True), LAST),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prompt", [None, "query"])
def test_cosines(case: str, prompt: str | None, tmp_path: Path) -> None:
    """At least 0.9999, with the checkpoint's prompts and without."""
    recipe, pooling = CASES[case]
    sized = {**pooling, "word_embedding_dimension": recipe.hidden}
    folder = embedder(tmp_path / "m", sized, recipe=recipe)
    theirs = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    theirs[0].auto_model = torch.nn.Module.float(theirs[0].auto_model)
    theirs.tokenizer.pad_token = EOS
    named = {"prompt": QUERY} if prompt else {}
    expected = np.stack([theirs.encode(text, **named) for text in TEXTS])
    arguments = ["embed", "--model", str(folder), "--kv-dtype", "f32", "--deterministic"]
    arguments += ["--prompt-name", prompt] if prompt else []
    done = CliRunner().invoke(main, [*arguments, *TEXTS])
    assert done.exit_code == 0, done.output
    got = np.array([json.loads(line) for line in done.stdout.splitlines()])
    assert ((got * expected).sum(axis=1) >= 0.9999).all()
