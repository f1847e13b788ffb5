"""Language models that rank: the difference of two tokens' logits behind a prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_factory
import numpy as np
import pytest
import saved_models
from helpers import assert_same_bits, failure
from model_configs import MODELS, SIZES
from safetensors.torch import load_file

from sterna import LLM, loading
from sterna.errors import RequestError
from sterna.llm.cross_encoder import QWEN3_FORMAT

YES, NO = 260, 261  # among the tokens that the tests' tokenizer has for no text
ROW = replace(MODELS["qwen3"], config=MODELS["qwen3"].config | {"max_position_embeddings": 1024})
PAIRS = [("who naps?", text) for text in ("the kitten", "bread", "ab" * 30)]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def write(folder: Path, **files: Any) -> Path:
    """A small Qwen3 whose tokenizer has the words; files: names without .json -> content."""
    saved_models.write(folder, ROW)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        if token["id"] in (YES, NO):
            word = "yes" if token["id"] == YES else "no"
            tokenizer["model"]["vocab"].pop(token["content"], None)
            token.update(content=word, special=False)
    path.write_text(json.dumps(tokenizer))
    for name, content in files.items():
        file = folder / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content))
    return folder


def expected(llm: LLM, prompts: list[str], no: int | None = NO) -> np.ndarray:
    """Of the logits behind each prompt."""
    rows = [llm.logits(llm.tokenizer.encode(prompt))[-1] for prompt in prompts]
    raw = np.array([row[YES] - (0 if no is None else row[no]) for row in rows])
    return 1 / (1 + np.exp(-raw.astype(np.float64)))


def opened(folder: Path) -> LLM:
    return LLM(folder, cache=False, threads=2, kv_dtype="f32", deterministic=True)


def modules(kind: str = "LogitScore") -> list[dict[str, str]]:
    """As sentence-transformers saves them."""
    types = f"sentence_transformers.cross_encoder.modules.logit_score.{kind}"
    return [
        {"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""},
        {"type": types, "path": "1_LogitScore"},
    ]


@pytest.mark.parametrize("no", [NO, None])
def test_what_the_folder_says(no: int | None, tmp_path: Path) -> None:
    """Tokens, and a template with the roles query and document."""
    score = {"true_token_id": YES, "false_token_id": no}
    settings = {
        "model_type": "CrossEncoder", "prompts": {"search": "Judge."},
        "default_prompt_name": "search",
    }  # fmt: skip
    files = {"modules": modules(), "1_LogitScore__config": score}
    folder = write(tmp_path, **files, config_sentence_transformers=settings)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    llm = opened(folder)
    prompts = [f"[system]Judge.\n[query]{q}\n[document]{d}\n" for q, d in PAIRS]
    got = llm.score(PAIRS)
    np.testing.assert_allclose(got, expected(llm, prompts, no), rtol=1e-5)
    for i, pair in enumerate(PAIRS):
        assert_same_bits(llm.score([pair]), got[i : i + 1])
    loading.save(llm.model, tmp_path / "packed")
    assert_same_bits(opened(tmp_path / "packed").score(PAIRS), got)
    assert len(llm.generate("ab", max_tokens=2, ignore_eos=True).tokens) == 2


def test_qwen3_reranker_as_first_published(tmp_path: Path) -> None:
    """Its name alone says it; its card says how it is asked."""
    llm = opened(write(tmp_path / "Qwen3-Reranker-tiny"))
    prompts = [QWEN3_FORMAT.replace("{query}", q).replace("{document}", d) for q, d in PAIRS]
    np.testing.assert_allclose(llm.score(PAIRS), expected(llm, prompts), rtol=1e-5)
    failure(lambda: llm.score([("a", "cat " * 300)]), RequestError, "at most 1024 tokens")
    other = opened(write(tmp_path / "Qwen3-tiny"))
    failure(lambda: other.score(PAIRS), RequestError, "no cross-encoder")


def test_long_texts_in_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class with a head, too, which no text continues."""
    saved_models.write(tmp_path, MODELS["qwen3-score"])
    llm = opened(tmp_path)
    whole = llm.score(PAIRS)
    monkeypatch.setattr("sterna.engine.embedding.PREFILL_CHUNK", 7)
    assert_same_bits(llm.score(PAIRS), whole)
    failure(lambda: llm.generate("ab"), RequestError, "a classifier; use score")


def test_a_gguf_file_that_ranks(tmp_path: Path) -> None:
    """Two rows in the place of the head, those of yes and no, and the template that is asked."""
    gguf = pytest.importorskip("gguf", reason="needs the gguf package")
    folder = write(tmp_path / "Qwen3-Reranker-tiny")
    sizes, tensors = SIZES | ROW.config, load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    tokens = {**vocabulary["model"]["vocab"]}
    tokens |= {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3")
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_value_length(sizes["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_chat_template([{"name": "rerank", "template": QWEN3_FORMAT}])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(tokens, key=tokens.__getitem__))
    added = {token["id"] for token in vocabulary["added_tokens"]}
    writer.add_token_types([3 if i in added else 1 for i in range(len(tokens))])
    writer.add_token_merges(["a b"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, sizes["num_hidden_layers"])
    for name, tensor in tensors.items():
        target = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(target, tensor.float().numpy())
    writer.add_tensor("cls.output.weight", head[[YES, NO]].float().numpy())
    gguf_factory.finish(writer)
    got = opened(tmp_path / "m.gguf").score(PAIRS)
    np.testing.assert_allclose(got, opened(folder).score(PAIRS), rtol=1e-5)
