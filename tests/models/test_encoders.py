"""Encoders give transformers' vectors, and cross-encoders its scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import torch
from helpers import ISAS, assert_same_bits, failure
from model_configs import MODELS, SIZES
from server_process import serving
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sterna import LLM, loading
from sterna.engine import Engine, Sequence, embed
from sterna.errors import ContextError, RequestError, UnsupportedModelError

TEXTS = ["a cat sleeps", "the kitten naps near the door of a house", "bread"]
WORDS = [
    "a", "cat", "sleep", "##s", "the", "kitten", "nap", "##en", "near", "door", "of", "house",
    "bread", "who", "?",
]  # fmt: skip


def word_pieces(pair_types: bool) -> Tokenizer:
    """BERT's tokenizer, whose template for pairs may tell the second part apart."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    rest = [f"w{i}" for i in range(SIZES["vocab_size"] - len(marks) - len(WORDS))]
    vocabulary = {token: i for i, token in enumerate([*marks, *WORDS, *rest])}
    built = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer(lowercase=True)
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    second = ":1" if pair_types else ":0"
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A [SEP] $B{second} [SEP]{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    built.enable_truncation(4)  # as training left it; texts are not cut
    return built


def write(folder: Path, name: str, pooling: str | None = None, **config: Any) -> Any:
    """A checkpoint as sentence-transformers has it; returns transformers' model."""
    model = saved_models.write(folder, MODELS[name])
    word_pieces("bert" in name and "roberta" not in name).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    if pooling:
        chain = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
        listed = [{"type": f"sentence_transformers.models.{t}", "path": p} for t, p in chain]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir()
        flags = {"pooling_mode_mean_tokens": False, f"pooling_mode_{pooling}": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return model


@torch.no_grad()
def vectors(model: Any, tokenizer: Tokenizer, kind: str) -> np.ndarray:
    """transformers', of unit length."""
    out = []
    for text in TEXTS:
        rows = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        row = rows[0] if kind == "cls" else rows.mean(0)
        out.append((row / row.norm()).numpy())
    return np.stack(out)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("bert", "cls_token"), ("bert", "mean_tokens"), ("xlm-roberta", "cls_token")],
)
def test_embeddings(name: str, pooling: str, tmp_path: Path) -> None:
    """Relative to their length, and with integer keys the same direction."""
    model = write(tmp_path, name, pooling)
    tokenizer = word_pieces(True)
    tokenizer.no_truncation()
    expected = vectors(model, tokenizer, pooling.partition("_")[0])
    llm = LLM(tmp_path, cache=False, threads=2, kv_dtype="f32", deterministic=True)
    got = llm.embed(TEXTS)
    assert np.linalg.norm(got - expected, axis=1).max() < 1e-5
    rounded = LLM(tmp_path, cache=False, threads=2).embed(TEXTS)
    assert (rounded * expected).sum(axis=1).min() > 0.9999
    for i, text in enumerate(TEXTS):
        assert_same_bits(llm.embed(text)[0], got[i])


def test_pooling_that_no_file_says(tmp_path: Path) -> None:
    """Is the caller's; the first token's values need no more files."""
    write(tmp_path, "bert")
    llm = LLM(tmp_path, cache=False, threads=1)
    failure(lambda: llm.embed("a cat"), RequestError, "pass pooling: last, mean or cls")
    assert llm.embed("a cat", pooling="cls").shape == (1, SIZES["hidden_size"])


@torch.no_grad()
def scores(model: Any, pair_types: bool, pairs: list[tuple[str, str]]) -> np.ndarray:
    """transformers', before the sigmoid."""
    tokenizer, out = word_pieces(pair_types), []
    tokenizer.no_truncation()
    for pair in pairs:
        read = tokenizer.encode(*pair)
        types = torch.tensor([read.type_ids])
        out.append(model(torch.tensor([read.ids]), token_type_ids=types).logits[0, 0].item())
    return np.array(out)


PAIRS = [("who sleeps ?", text) for text in TEXTS] + [(TEXTS[1], TEXTS[0])]


@pytest.mark.parametrize("name", ["bert-score", "xlm-roberta-score"])
def test_scores_of_pairs(name: str, tmp_path: Path) -> None:
    """Of the two parts' own rows, where the tokenizer tells them apart."""
    model = write(tmp_path, name)
    raw = scores(model, name == "bert-score", PAIRS)
    llm = LLM(tmp_path, cache=False, threads=2, kv_dtype="f32", deterministic=True)
    got = llm.score(PAIRS)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-raw)), rtol=1e-4, atol=1e-6)
    for i, pair in enumerate(PAIRS):
        assert_same_bits(llm.score([pair]), got[i : i + 1])
    if name == "bert-score":
        assert abs(scores(model, False, PAIRS) - raw).max() > 1e-2  # the parts' rows count


def test_scores_that_are_the_heads_own(tmp_path: Path) -> None:
    """As sentence-transformers says; more than one label, or another function, is refused."""
    own = {"activation_fn": "torch.nn.modules.linear.Identity"}
    model = write(tmp_path, "bert-score", sentence_transformers=own)
    llm = LLM(tmp_path, cache=False, threads=1, kv_dtype="f32", deterministic=True)
    np.testing.assert_allclose(llm.score(PAIRS), scores(model, True, PAIRS), rtol=1e-3, atol=1e-4)
    file = tmp_path / "config.json"
    for field, value in {
        "sentence_transformers": {"activation_fn": "torch.nn.Tanh"},
        "id2label": {"0": "a", "1": "b"},
    }.items():
        edited = json.loads(file.read_text()) | {field: value}
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "config.json").write_text(json.dumps(edited))
        (tmp_path / "other" / "model.safetensors").write_bytes(
            (tmp_path / "model.safetensors").read_bytes()
        )
        failure(lambda: LLM(tmp_path / "other", cache=False), UnsupportedModelError, "must be")


def test_what_an_encoder_does_not_do(tmp_path: Path) -> None:
    """Each in one line."""
    write(tmp_path, "bert")
    llm = LLM(tmp_path, cache=False, threads=1)
    failure(lambda: llm.generate("a cat"), RequestError, "is an encoder; use embed")
    failure(lambda: llm.logprobs([4, 5, 6]), RequestError, "is an encoder")
    failure(lambda: llm.score(PAIRS), RequestError, "is no cross-encoder")
    long = "cat " * 300
    failure(lambda: llm.embed(long, pooling="mean"), ContextError, "at most 256 tokens")
    failure(lambda: LLM(tmp_path, cache=False, context=300), RequestError, "context", "256")
    text = Sequence()
    llm.engine.step([(text, [2, 4, 3], 1)])
    failure(lambda: llm.engine.step([(text, [4], 1)]), RequestError, "in one step")


def test_pairs_that_are_none(tmp_path: Path) -> None:
    """And what is too long, or no prompt."""
    write(tmp_path, "bert-score")
    llm = LLM(tmp_path, cache=False, threads=1)
    alone: Any = ("a",)
    failure(lambda: llm.score([alone]), RequestError, "pair 0")
    failure(lambda: llm.score([("a", "cat " * 300)]), ContextError, "at most 256 tokens")
    failure(lambda: llm.generate("a cat"), RequestError, "use score")


def test_a_packed_copy_has_the_same_bits(tmp_path: Path) -> None:
    """Of vectors and of scores, on every unit and in int8 layers."""
    for name, kind in (("bert-score", "score"), ("xlm-roberta", "embed")):
        write(tmp_path / name, name)
        for form in (None, "i8"):
            made: list[np.ndarray] = []
            first = LLM(tmp_path / name, cache=False, threads=1, format=form)
            packed = tmp_path / f"{name}-{form}"
            loading.save(first.model, packed)
            for isa in ISAS:
                llm = LLM(packed, threads=3, isa=isa, cache=False, deterministic=True)
                one = llm.score(PAIRS) if kind == "score" else llm.embed(TEXTS, pooling="mean")
                made.append(one)
            for other in made[1:]:
                assert_same_bits(other, made[0])


def test_texts_longer_than_a_step(tmp_path: Path) -> None:
    """Stay whole: an encoder's positions see what follows."""
    saved = MODELS["bert"]
    config = saved.config | {"max_position_embeddings": 700}
    model = saved_models.write(tmp_path, replace(saved, config=config))
    tokens = np.random.default_rng(6).integers(0, 256, 600).tolist()
    engine = Engine(loading.load(tmp_path, cached=False), threads=2, kv_dtype="f32")
    got = embed(engine, [tokens[:20], tokens, tokens[:30]], "mean", False)
    with torch.no_grad():
        for i, text in enumerate([tokens[:20], tokens, tokens[:30]]):
            expected = model(torch.tensor([text])).last_hidden_state[0].mean(0).numpy()
            assert abs(got[i] - expected).max() < 1e-4


def test_a_server_of_a_cross_encoder(tmp_path: Path) -> None:
    """Ranks by its scores, and continues no text."""
    write(tmp_path / "scorer", "bert-score")
    llm = LLM(tmp_path / "scorer", cache=False, threads=1)
    scores = llm.score([("who sleeps ?", text) for text in TEXTS]).tolist()
    with serving(tmp_path, str(tmp_path / "scorer"), "--threads", "1") as server:
        body = server.post("/v1/rerank", query="who sleeps ?", documents=TEXTS).json()["results"]
        assert {r["index"]: r["relevance_score"] for r in body} == dict(enumerate(scores))
        assert body[0]["relevance_score"] == max(scores)
        data = server.post("/v1/score", text_1="who sleeps ?", text_2=TEXTS).json()["data"]
        assert [d["score"] for d in data] == scores
        vector = server.post("/v1/embeddings", input=TEXTS[0], pooling="cls").json()["data"][0]
        assert vector["embedding"] == llm.embed(TEXTS[0], pooling="cls")[0].tolist()
        refused = server.post("/v1/completions", prompt="a cat")
        assert refused.status_code == 400
        assert "is an encoder" in refused.json()["error"]["message"]
