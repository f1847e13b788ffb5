"""`sterna embed` and `LLM.score` compared with sentence-transformers, on small checkpoints.

Last token and mean, Qwen3's graph and Gemma 3's, and BitNet layers with a norm before each, which
round their inputs to int8: there a rounding falls the other way now and then. Encoders,
cross-encoders and language models that rank are saved by transformers' own classes and by
sentence-transformers' own `save`, and opened by both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import saved_models
import torch
import transformers
from checkpoint_factory import EOS, RECIPES, Recipe
from click.testing import CliRunner
from model_configs import MODELS
from test_embeddings import LAST, MEAN, QUERY, TEXTS, embedder
from test_encoders import word_pieces
from test_rerankers import TEMPLATE

from sterna import LLM
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


WORDS = ["A cat sleeps", "the kitten naps near the door of a house", "bread", "the door " * 60]
PAIRS = [("who sleeps ?", text) for text in WORDS]
#: Row of MODELS -> its pooling and the layers behind it: features, bias, activation.
ENCODERS: dict[str, tuple[str, list[tuple[int, bool, type]]]] = {
    **dict.fromkeys(("bert", "modernbert", "xlm-roberta", "gte", "eurobert"), ("mean", [])),
    **dict.fromkeys(("nomic-bert", "jina-v3", "modernbert-biased"), ("cls", [])),
    "embedding-gemma": ("mean", [(96, False, torch.nn.Identity), (64, False, torch.nn.Identity)]),
    "roberta": ("mean", [(48, True, torch.nn.Tanh)]),
}


#: Least cosines in int8 of models with RMSNorms, whose untrained layers amplify what is rounded.
INT8 = {"eurobert": 0.999, "embedding-gemma": 0.998}
#: The width of bge-small, for which rounding to int8 is meant.
WIDE = {"hidden_size": 384, "intermediate_size": 1536, "head_dim": 64, "num_attention_heads": 6}


def saved(folder: Path, row: str, *, words: bool = True, own: bool = False) -> Path:
    """A model of transformers with a tokenizer; words: that of word pieces. own: the weights are
    those that the class begins with, and the width is usual."""
    saved_models.write(folder, MODELS[row])
    if own:
        kv = {"num_key_value_heads": 2} if MODELS[row].config.get("head_dim") else {}
        wide = replace(MODELS[row], config=MODELS[row].config | WIDE | kv)
        torch.manual_seed(0)
        kind = getattr(transformers, wide.name)
        kind._from_config(saved_models.config_of(wide)).float().save_pretrained(folder)
    if words:
        tokenizer = word_pieces("bert" in row and "roberta" not in row)
        tokenizer.no_truncation()
        marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            sep_token="[SEP]",
            model_max_length=250,
            **marks,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("row", ENCODERS)
@pytest.mark.parametrize("form", [None, "i8"])
def test_encoders(row: str, form: str | None, tmp_path: Path) -> None:
    """Cosines of at least 0.9999, without a prompt and with one by name; with int8 layers for
    weights as training begins with them, since the others' signs alternate more than any model's.
    """
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    pooling, dense = ENCODERS[row]
    base = saved(tmp_path / "base", row, own=form is not None)
    first = Transformer(str(base), do_lower_case=True)
    width = first.get_embedding_dimension()
    modules = [first, Pooling(width, pooling_mode=pooling)]
    for features, bias, activation in dense:
        modules.append(Dense(width, features, bias=bias, activation_function=activation()))
        width = features
    kind = sentence_transformers.SentenceTransformer
    kind(modules=[*modules, Normalize()], prompts={"query": "a cat "}).save(str(tmp_path / "m"))
    theirs, ours = kind(str(tmp_path / "m"), device="cpu"), LLM(tmp_path / "m", format=form)
    for prompt in (None, "query"):
        expected = theirs.encode(WORDS, prompt_name=prompt)
        got = ours.embed(WORDS, prompt_name=prompt)
        assert got.shape == (len(WORDS), width)
        least = float((got * expected).sum(axis=1).min())
        print(f"{row} {form or 'floats'}: 1 - {1 - least:.1e}")
        assert least >= (0.9999 if form is None else INT8.get(row, 0.9999))


CROSS_ENCODERS = [
    "bert-score", "roberta-score", "modernbert-score", "modernbert-score-mean", "jina-v3-score",
    "gte-score",
]  # fmt: skip


@pytest.mark.parametrize("row", CROSS_ENCODERS)
def test_cross_encoders(row: str, tmp_path: Path) -> None:
    """Scores, as its `save` writes them."""
    kind = sentence_transformers.CrossEncoder
    kind(str(saved(tmp_path / "base", row)), device="cpu").save(str(tmp_path / "m"))
    expected = kind(str(tmp_path / "m"), device="cpu").predict(PAIRS)
    llm = LLM(tmp_path / "m", kv_dtype="f32", deterministic=True)
    np.testing.assert_allclose(llm.score(PAIRS), expected, atol=1e-4)


def test_a_language_model_that_ranks(tmp_path: Path) -> None:
    """By two tokens' logits behind the chat template."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    folder = saved(tmp_path / "base", "qwen3", words=False)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    first = Transformer(str(folder), transformer_task="text-generation")
    first.tokenizer.pad_token = "</s>"
    kind = sentence_transformers.CrossEncoder
    kind(modules=[first, LogitScore(260, 261)], prompts={"judge": "Judge."}).save(
        str(tmp_path / "m")
    )
    theirs = kind(str(tmp_path / "m"), device="cpu")
    short = PAIRS[:3]
    expected = [theirs.predict([pair])[0] for pair in short]
    got = LLM(tmp_path / "m", kv_dtype="f32", deterministic=True).score(short)
    np.testing.assert_allclose(got, expected, atol=1e-3)
