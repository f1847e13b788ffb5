"""Jina embeddings v2, of which transformers has no class: vectors and scores against float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jina_models
import numpy as np
import pytest
import test_encoders
from helpers import ISAS, assert_same_bits, failure
from jina_models import KINDS, fields
from saved_answers import TOKENS, error, logits

from sterna import LLM, loading
from sterna.engine import Engine, embed
from sterna.errors import UnsupportedModelError

#: Heads that are a power of two, and others.
HEADS = (4, 6)
LONG = np.random.default_rng(4).integers(0, 256, 300).tolist()  # over a chunk of attention
RERANKER = {"architectures": ["JinaBertForSequenceClassification"], "num_labels": 1}


def means(folder: Path, texts: list[list[int]], **options: Any) -> np.ndarray:
    """Sterna's vectors of texts of tokens, of unit length."""
    model = loading.load(folder, cached=False)
    engine = Engine(model, **{"threads": 2, "deterministic": True} | options)
    return embed(engine, texts, "mean", True)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_description(kind: str, heads: int, tmp_path: Path) -> None:
    """Multiplied by the table of tokens, which shows each feature; without ALiBi they are others,
    and so are they with another epsilon."""
    for eps in (1e-5, 1e-2):
        config = fields(kind, heads, layer_norm_eps=eps)
        made = jina_models.write(tmp_path, kind, config)
        table = made["embeddings.word_embeddings.weight"].astype(np.float64)
        expected = jina_models.rows(kind, made, config, TOKENS) @ table.T
        assert error(logits(tmp_path), expected) < 2e-5
        plain = jina_models.rows(kind, made, config, TOKENS, biased=False) @ table.T
        assert error(plain, expected) > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_vectors(kind: str, tmp_path: Path) -> None:
    """Means of long and short texts, alone and together, and of integer keys nearly."""
    config = fields(kind, 6)
    made = jina_models.write(tmp_path, kind, config)
    texts = [LONG, TOKENS[:20], TOKENS]
    rows = [jina_models.rows(kind, made, config, text).mean(0) for text in texts]
    expected = np.stack([row / np.linalg.norm(row) for row in rows])
    got = means(tmp_path, texts, kv_dtype="f32")
    assert np.linalg.norm(got - expected, axis=1).max() < 2e-5
    for i, text in enumerate(texts):
        assert_same_bits(means(tmp_path, [text], kv_dtype="f32")[0], got[i])
    assert (means(tmp_path, texts) * expected).sum(1).min() > 0.9999


def test_scores_of_pairs(tmp_path: Path) -> None:
    """As BERT's, by a pooler of the first token; the second part has a row of its own."""
    config = fields("gated", **RERANKER)
    made = jina_models.write(tmp_path, "gated", config)
    tokenizer = test_encoders.word_pieces(True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.no_truncation()
    raw = []
    for pair in test_encoders.PAIRS:
        read = tokenizer.encode(*pair)
        row = jina_models.rows("gated", made, config, read.ids, read.type_ids.index(1))[0]
        pooled = np.tanh(row @ made["bert.pooler.dense.weight"].T + made["bert.pooler.dense.bias"])
        raw.append(pooled @ made["classifier.weight"][0] + made["classifier.bias"][0])
    expected = 1 / (1 + np.exp(-np.array(raw)))
    llm = LLM(tmp_path, cache=False, threads=2, kv_dtype="f32", deterministic=True)
    np.testing.assert_allclose(llm.score(test_encoders.PAIRS), expected, rtol=1e-4)


@pytest.mark.parametrize("form", [None, "i8"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_copy_has_the_same_bits(kind: str, form: str | None, tmp_path: Path) -> None:
    """On every unit."""
    jina_models.write(tmp_path / "m", kind, fields(kind))
    model = loading.load(tmp_path / "m", cached=False, format=form)
    expected = embed(Engine(model, threads=1, deterministic=True), [LONG, TOKENS], "mean", True)
    loading.save(model, tmp_path / "packed")
    for isa in ISAS:
        assert_same_bits(means(tmp_path / "packed", [LONG, TOKENS], isa=isa, threads=3), expected)


def test_a_masked_models_head_is_left_out(tmp_path: Path) -> None:
    """As is a prefix, both of which some checkpoints have."""
    config = fields("gated")
    made = jina_models.write(tmp_path, "gated", config)
    expected = logits(tmp_path)
    head = {"cls.predictions.bias": np.zeros(272, np.float32)}
    named = {f"bert.{name}": w for name, w in made.items()} | head
    jina_models.save(tmp_path, named)
    assert_same_bits(logits(tmp_path), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"position_embedding_type": "absolute"}, {"feed_forward_type": "reglu"},
        {"hidden_act": "relu"}, {"is_decoder": True},
    ],
)  # fmt: skip
def test_variants_that_do_not_run(wrong: dict[str, Any], tmp_path: Path) -> None:
    """Each is named."""
    jina_models.write(tmp_path, "gated", fields("gated"))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    failure(lambda: loading.load(tmp_path, cached=False), UnsupportedModelError, *wrong)
