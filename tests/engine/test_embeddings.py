"""Vectors of texts: pooled as a checkpoint says, those of transformers, alone and in batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from checkpoint_factory import RECIPES, Recipe, write
from checkpoint_factory.tokenizers import BOS, EOS
from click.testing import CliRunner
from helpers import assert_same_bits, command, failed, failure
from hub_server import Hub
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoTokenizer

from sterna import LLM, _native
from sterna.checkpoints import cache
from sterna.checkpoints.sentence_transformers import PROMPTS, SIZES
from sterna.cli import main
from sterna.convert import convert
from sterna.errors import RequestError

TEXTS = ["a", "the quick brown fox", "def f(x):\n    return x", "the quick brown fox " * 25]
QUERY = "Instruct: find it\nQuery:"
QWEN3 = replace(RECIPES["qwen3"], dtype=torch.float32)


def module(i: int, kind: str, path: str) -> dict[str, Any]:
    return {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}


CHAIN = [
    module(0, "Transformer", ""),
    module(1, "Pooling", "1_Pooling"),
    module(2, "Normalize", "2_Normalize"),
]
LAST = {
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}
MEAN = {**LAST, "pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}


def embedder(
    folder: Path,
    pooling: dict[str, Any] = LAST,
    chain: Any = CHAIN,
    recipe: Recipe = QWEN3,
    **more: Any,
) -> Path:
    """A recipe as sentence-transformers saves it: without a head, and names without `model.`."""
    write(folder, recipe)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): w for name, w in weights.items() if "lm_head" not in name}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    files = {
        "modules.json": chain, "1_Pooling/config.json": pooling,
        PROMPTS: {"prompts": {"query": QUERY, "document": ""}},
        **more,
    }  # fmt: skip
    (folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def reference(folder: Path, texts: list[str], kind: str) -> np.ndarray:
    """transformers' last hidden state, pooled and brought to unit length."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        row = hidden[-1] if kind == "last" else hidden.mean(dim=0)
        rows.append((row / row.norm()).numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("kind", "pooling"), [("last", LAST), ("mean", MEAN)])
@pytest.mark.parametrize("tied", [True, False])
def test_vectors_are_those_of_transformers(
    kind: str, pooling: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    """Cosine and values, for a model that ties its head and one whose head was not saved."""
    folder = embedder(tmp_path / "m", pooling, recipe=replace(QWEN3, tied=tied))
    llm = LLM(folder, kv_dtype="f32", threads=2)
    got = llm.embed(TEXTS)
    expected = reference(folder, TEXTS, kind)
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    assert ((got * expected).sum(axis=1) > 0.999999).all()
    np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-6)
    assert llm.info()["pooling"] == kind
    assert llm.info()["head"] != "exact"


def test_gemma(tmp_path: Path) -> None:
    """Another family, whose tokenizer opens a text with a token of its own."""
    recipe = replace(RECIPES["gemma3"], dtype=torch.float32)
    folder = embedder(tmp_path / "m", MEAN, recipe=recipe)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["Gemma3TextModel"]})
    )
    got = LLM(folder, kv_dtype="f32", threads=2).embed(TEXTS)
    assert ((got * reference(folder, TEXTS, "mean")).sum(axis=1) > 0.999999).all()


@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_the_same_bits_alone_in_a_batch_and_everywhere(
    pooling: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units, threads, company, chunks, the cache and packed copies change no bit of a vector."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    folder = embedder(tmp_path / "m", pooling)
    expected = LLM(folder, threads=1, cache=False).embed(TEXTS)
    for isa in _native.isas():
        assert_same_bits(LLM(folder, threads=2, isa=isa).embed(TEXTS[::-1])[::-1], expected)
    cache.finish()
    again = LLM(folder, threads=2)  # from the cache
    for text, row in zip(TEXTS, expected, strict=True):
        assert_same_bits(again.embed(text)[0], row)
    monkeypatch.setattr("sterna.engine.embedding.PREFILL_CHUNK", 7)
    assert_same_bits(again.embed(TEXTS), expected)
    convert(folder, tmp_path / "packed", None)
    assert_same_bits(LLM(tmp_path / "packed").embed(TEXTS), expected)


def dense(
    folder: Path, i: int, shape: tuple[int, int], bias: bool, activation: str
) -> dict[str, Any]:
    """A linear layer behind the pooling, as sentence-transformers saves it."""
    rng, path = torch.Generator().manual_seed(i), folder / f"{i}_Dense"
    path.mkdir(parents=True, exist_ok=True)
    layer = {"linear.weight": torch.randn(shape, generator=rng) * shape[1] ** -0.5}
    layer |= {"linear.bias": torch.randn(shape[0], generator=rng)} if bias else {}
    save_file(layer, path / "model.safetensors")
    config = {
        "in_features": shape[1], "out_features": shape[0], "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return module(i, "Dense", path.name)


def test_dense_layers(tmp_path: Path) -> None:
    """Behind the pooling, before the length: values of float64, and a packed copy's bits."""
    folder, d = embedder(tmp_path / "m", MEAN, CHAIN[:2]), QWEN3.hidden
    plain = LLM(folder, threads=1, kv_dtype="f32").embed(TEXTS).astype(np.float64)
    layers = [
        dense(folder, 2, (48, d), True, "activation.Tanh"),
        dense(folder, 3, (40, 48), False, "linear.Identity"),
    ]
    normalise = module(4, "Normalize", "4_Normalize")
    (folder / "modules.json").write_text(json.dumps([*CHAIN[:2], *layers, normalise]))
    (first, second) = (load_file(folder / f"{i}_Dense" / "model.safetensors") for i in (2, 3))
    rows = np.tanh(plain @ first["linear.weight"].numpy().T + first["linear.bias"].numpy())
    rows = rows @ second["linear.weight"].numpy().T
    llm = LLM(folder, threads=2, kv_dtype="f32", cache=False)
    got = llm.embed(TEXTS)
    assert got.shape == (len(TEXTS), 40)
    np.testing.assert_allclose(got, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-5)
    convert(folder, tmp_path / "packed", None)
    for isa in _native.isas():
        packed = LLM(tmp_path / "packed", threads=1, kv_dtype="f32", isa=isa)
        assert_same_bits(packed.embed(TEXTS), got)
        assert_same_bits(packed.embed(TEXTS[0])[0], got[0])


def test_texts_that_are_lower_cased(tmp_path: Path) -> None:
    """As sentence_bert_config.json says, also in a packed copy."""
    folder = embedder(tmp_path / "m", **{SIZES: {"do_lower_case": True}})
    llm = LLM(folder, cache=False)
    assert_same_bits(llm.embed("The Fox"), llm.embed("the fox"))
    convert(folder, tmp_path / "packed", None)
    assert_same_bits(LLM(tmp_path / "packed").embed("THE fox"), llm.embed("the fox"))
    (folder / SIZES).write_text("{}")
    cased = LLM(folder, cache=False)
    assert not np.array_equal(cased.embed("The Fox"), cased.embed("the fox"))


def test_many_texts_in_a_small_pool(tmp_path: Path) -> None:
    """A step begins no more texts than there are pages, and leaves none held."""
    folder = embedder(tmp_path / "m")
    llm = LLM(folder, context=64)
    texts = [f"{i} birds" for i in range(150)]
    small = LLM(folder, context=64, kv_bytes=3 * 64 * llm.engine.kv_cache.bytes_per_position)
    assert small.engine.kv_cache.pool.count == 3
    assert_same_bits(small.embed(texts), llm.embed(texts))
    assert small.engine.kv_cache.pool.free == 3
    assert llm.embed([]).shape == (0, QWEN3.hidden)


def test_recurrent_models(tmp_path: Path) -> None:
    """Hybrids keep a state for each text."""
    write(tmp_path / "m", RECIPES["qwen3_5"])
    llm = LLM(tmp_path / "m", threads=2)
    got = llm.embed(TEXTS, pooling="mean")
    for text, row in zip(TEXTS, got, strict=True):
        assert_same_bits(llm.embed(text, pooling="mean")[0], row)


def test_prompts(tmp_path: Path) -> None:
    """By name, as a text, or the checkpoint's default."""
    folder = embedder(tmp_path / "m")
    llm = LLM(folder)
    expected = llm.embed(QUERY + TEXTS[1])
    assert_same_bits(llm.embed(TEXTS[1], prompt_name="query"), expected)
    assert_same_bits(llm.embed(TEXTS[1], prompt=QUERY), expected)
    assert_same_bits(llm.embed(TEXTS[1], prompt_name="document"), llm.embed(TEXTS[1]))
    assert not np.array_equal(llm.embed(TEXTS[1]), expected)
    prompts = folder / PROMPTS
    prompts.write_text(json.dumps({"prompts": {"query": QUERY}, "default_prompt_name": "query"}))
    assert_same_bits(LLM(folder).embed(TEXTS[1]), expected)


def test_a_gguf_says_it_too(tmp_path: Path) -> None:
    """`pooling_type`, written and read."""
    folder = embedder(tmp_path / "m", MEAN)
    convert(folder, tmp_path / "m.gguf", "gguf:F32")
    expected = LLM(folder).embed(TEXTS)
    assert_same_bits(LLM(tmp_path / "m.gguf").embed(TEXTS), expected)


def test_pull(server: Hub, tmp_path: Path) -> None:
    """The files that say how are fetched with the model."""
    folder = embedder(tmp_path / "m")
    paths = [path for path in folder.rglob("*") if path.is_file()]
    server.add("terns/embed", {str(p.relative_to(folder)): p.read_bytes() for p in paths})
    assert_same_bits(LLM("terns/embed").embed(TEXTS), LLM(folder).embed(TEXTS))


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 20 tokens a text, whose tokenizer puts special ones around it."""
    folder = embedder(tmp_path_factory.mktemp("cut") / "m", **{SIZES: {"max_seq_length": 20}})
    file = str(folder / "tokenizer.json")
    around = tokenizers.Tokenizer.from_file(file)
    ids = [(mark, around.token_to_id(mark)) for mark in (BOS, EOS)]
    around.post_processor = TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=ids)
    around.save(file)
    return folder


def test_truncation_is_that_of_tokenizers(limited: Path) -> None:
    """As sentence-transformers cuts: special tokens stay, at both ends; what is cut is counted."""
    llm, theirs = LLM(limited), AutoTokenizer.from_pretrained(limited)
    for truncate, side, most in (
        (True, "right", 20), ("end", "right", 20), ("start", "left", 20), (7, "right", 7),
        (500, "right", 20), (2, "right", 2),
    ):  # fmt: skip
        theirs.truncation_side = side
        found = llm.embedder.inputs(TEXTS, truncate=truncate)
        expected = [theirs(text, truncation=True, max_length=most)["input_ids"] for text in TEXTS]
        assert found.tokens == expected, truncate
        whole = [len(theirs(text)["input_ids"]) for text in TEXTS]
        assert found.cut == [max(0, n - most) for n in whole]
    rows = llm.embed(TEXTS, truncate=True)
    assert_same_bits(rows[:1], llm.embed(TEXTS[0]))
    cut = theirs.decode(llm.embedder.inputs(TEXTS[3], truncate=True).tokens[0][1:-1])
    assert_same_bits(rows[3], llm.embed(cut)[0])
    prompted = llm.embedder.inputs(TEXTS[3], prompt_name="query", truncate=True)
    assert theirs.decode(prompted.tokens[0]).startswith(f"{BOS}{QUERY[:8]}")


def test_an_empty_text_among_others(limited: Path, tmp_path: Path) -> None:
    """Has the vector of the special tokens, as in sentence-transformers; one without any is
    refused."""
    llm = LLM(limited)
    rows = llm.embed(["a", "", "b"])
    assert rows[1] @ reference(limited, [""], "last")[0] > 0.9999
    assert_same_bits(rows[::2], llm.embed(["a", "b"]))
    plain = embedder(tmp_path / "m")
    bare = tokenizers.Tokenizer.from_file(str(plain / "tokenizer.json"))
    bare.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    bare.save(str(plain / "tokenizer.json"))
    failure(lambda: LLM(plain).embed(["a", ""]), RequestError, "text 1", "special tokens")


def test_truncation_on_the_command_line(limited: Path) -> None:
    arguments = ["embed", "--model", str(limited), TEXTS[0], TEXTS[3]]
    failed(CliRunner().invoke(main, arguments), "at most 20", "text 1")
    done = CliRunner().invoke(main, [*arguments, "--truncate"])
    assert done.exit_code == 0, done.stderr
    assert "1 of 2 texts were truncated, by" in done.stderr
    assert len(done.stdout.splitlines()) == 2


# ---------------------------------------------------------------------------------- the command


def test_command(tmp_path: Path) -> None:
    """Arguments or lines in, arrays of the same float32 out, or a .npy file."""
    folder = embedder(tmp_path / "m")
    expected = LLM(folder).embed(TEXTS[:3])
    run = CliRunner().invoke
    one = run(main, ["embed", "--model", str(folder), *TEXTS[:2]])
    assert one.exit_code == 0, one.output
    rows = [np.array(json.loads(line), np.float32) for line in one.stdout.splitlines()]
    assert_same_bits(np.stack(rows), expected[:2])
    file = tmp_path / "v.npy"
    piped = run(
        main, ["embed", "--model", str(folder), "--output", str(file)], input="\n".join(TEXTS[:2])
    )
    assert piped.exit_code == 0, piped.output
    assert piped.stdout == ""
    assert_same_bits(np.load(file), expected[:2])
    failed(command("embed", "--output", str(tmp_path / "no" / "v.npy"), "a"), "folder")
    none = run(main, ["embed", "--model", str(folder)], input="")
    assert none.exit_code != 0
