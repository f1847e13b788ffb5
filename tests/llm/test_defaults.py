"""Sampling where a request says nothing: what a model's makers published."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command, failure
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TypicalLogitsWarper,
)

import sterna
from sterna import LLM
from sterna.convert import convert
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.llm.generation_config import FIELDS, sampling_of
from sterna.server import replay

# As models on the Hub have them, and what vLLM takes of each; the last two are transformers' words
# for a greedy model.
PUBLISHED: list[tuple[dict[str, Any], dict[str, float]]] = [
    (
        {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
         "repetition_penalty": 1.1, "eos_token_id": [1, 2]},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
    ),
    ({"do_sample": True, "top_k": 64, "top_p": 0.95},
     {"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
    ({"temperature": 0.15, "bos_token_id": 1}, {"temperature": 0.15}),
    ({"min_p": 0.05}, {"temperature": 1.0, "min_p": 0.05}),
    ({"do_sample": True}, {"temperature": 1.0}),
    ({"temperature": 0.6, "top_k": -1}, {"temperature": 0.6, "top_k": 0}),
    ({"repetition_penalty": 1.05, "top_p": None}, {"repetition_penalty": 1.05}),
    ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.05},
     {"repetition_penalty": 1.05}),
    ({}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), PUBLISHED)
def test_what_files_say(config: dict[str, Any], expected: dict[str, float]) -> None:
    assert sampling_of(config, Path("generation_config.json")) == expected


@pytest.mark.parametrize("config", [{"temperature": -1}, {"top_p": "x"}, {"top_k": 2.5}])
def test_unusable_values(config: dict[str, Any]) -> None:
    failure(lambda: sampling_of(config, Path("g.json")), ModelFormatError, "g.json", *config)


def test_every_field_of_transformers_is_known() -> None:
    """Its attributes and its defaults, which files of version 4 write out in full."""
    own = GenerationConfig()
    assert set(vars(own)) | own.to_dict().keys() <= FIELDS.names
    full = {**own.to_dict(), **GenerationConfig._get_default_generation_params()}
    FIELDS.check(full, Path("generation_config.json"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence_bias", [[[5, 6], -10.0]]), ("forced_eos_token_id", 0), ("num_beams", 4),
        ("begin_suppress_tokens", [220]), ("top_h", 0.4), ("guidance_scale", 1.5),
        ("epsilon_cutoff", 3e-4), ("eta_cutoff", 3e-4),
        ("no_repeat_ngram_size", 3), ("stop_strings", ["\n\n"]),
    ],
)  # fmt: skip
def test_what_is_not_applied_is_refused(name: str, value: object) -> None:
    """By name, with what to do; the message is that of every command that reads the file."""
    failure(
        lambda: sampling_of({"do_sample": True, name: value}, Path("g.json")),
        UnsupportedModelError, f"g.json: {name}", "remove it",
    )  # fmt: skip


#: Names in 42 generation_config.json of public repositories that no library reads: of the chats of
#: Qwen and Baichuan, and of single makers.
PRIVATE = {
    "chat_format": "chatml", "max_window_size": 6144, "user_token_id": 195,
    "assistant_token_id": 196, "profiles": {"low": {"top_p": 0.8}}, "generation_kwargs": {"x": 1},
}  # fmt: skip


def test_names_of_single_makers(recwarn: pytest.WarningsRecorder) -> None:
    """They stop no load; one warning has all of them."""
    known = {"_name_or_path": "x", "_from_model_config": True, "transformers_version": "4.31.0"}
    found = sampling_of({**PRIVATE, **known, "temperature": 0.3}, Path("g.json"))
    assert found == {"temperature": 0.3}
    (warning,) = [str(w.message) for w in recwarn if w.category is RuntimeWarning]
    assert warning.startswith("g.json: ")
    assert [name for name in (*PRIVATE, *known) if f"'{name}'" in warning] == [*PRIVATE]


@pytest.mark.usefixtures("little_bandwidth")
def test_a_gguf_file_says_the_same(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """llama.cpp's keys are written and read: 0.7 is 0.7, though the file has a float32."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-256"), folder)
    file = folder / "generation_config.json"
    ends = json.loads(file.read_text())
    assert ends.pop("do_sample") is False
    asked = {"temperature": 0.7, "top_k": 7, "top_p": 0.95, "min_p": 0.05}
    file.write_text(json.dumps({**ends, **asked, "repetition_penalty": 1.1}))
    convert(folder, tmp_path / "m.gguf", "gguf:F32")
    llms = [LLM(folder, threads=1), LLM(tmp_path / "m.gguf", threads=1)]
    assert llms[0].defaults == llms[1].defaults == {**asked, "repetition_penalty": 1.1}
    for llm in llms:
        assert llm.info()["sampling"] == llm.defaults
        own = {**llm.defaults, "typical_p": 1.0}
        assert llm.requests.make([1], {}).params.sampling == own
        assert llm.requests.make([1], {"temperature": 0.0, "top_k": 0}).params.sampling == {
            **own, "temperature": 0.0, "top_k": 0,
        }  # fmt: skip
        assert llm.requests.make([1], {"top_k": None}).params.top_k == 7
    (row,) = json.loads(command("info", str(tmp_path / "m.gguf"), "--json").stdout)
    assert row["sampling"] == llms[0].defaults
    assert row["architecture"] == "LlamaForCausalLM"
    tokenizer = llms[0].tokenizer
    assert row["end_tokens"] == [tokenizer.token_bytes(id).decode() for id in tokenizer.eos_ids]
    assert "temperature 0.7, top_k 7" in command("info", str(folder)).stdout
    file.write_text(json.dumps({**ends, "do_sample": False, "temperature": 0.7}))
    convert(folder, tmp_path / "greedy.gguf", "gguf:F32")
    assert LLM(tmp_path / "greedy.gguf", threads=1).defaults == {}


def test_typical_p_keeps_the_tokens_of_transformers(
    tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    """Behind the temperature and top_k, as in `generate`; a request may change it."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-256"), folder)
    file = folder / "generation_config.json"
    ends = json.loads(file.read_text())
    said = {"do_sample": True, "temperature": 2.5, "top_k": 30, "typical_p": 0.4}
    file.write_text(json.dumps({**ends, **said}))
    llm = LLM(folder, threads=1)
    assert llm.defaults == {name: said[name] for name in llm.defaults}
    prompt = llm.tokenizer.encode("def f")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    scores = theirs(torch.tensor([prompt])).logits[:, -1].detach()
    for step in (TemperatureLogitsWarper(2.5), TopKLogitsWarper(30), TypicalLogitsWarper(0.4)):
        scores = step(torch.tensor([prompt]), scores)
    kept = set(torch.isfinite(scores[0]).nonzero().flatten().tolist())
    assert 2 < len(kept) < 30

    def drawn(**options: Any) -> set[int]:
        made = (llm.generate(prompt, max_tokens=1, seed=s, **options) for s in range(150))
        return {tokens[0] for tokens in (answer.tokens for answer in made) if tokens}

    own = drawn()
    assert own <= kept
    assert len(own) > len(kept) / 2
    assert not drawn(typical_p=1.0) <= kept
    with pytest.warns(RuntimeWarning, match=r"general\.sampling.*typical_p"):
        convert(folder, tmp_path / "m.gguf", "gguf:F32")


def test_suppressed_tokens_never_come(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Either kind of file and the request may suppress tokens; ids of no token are left out."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-256"), folder)
    options: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}
    first = LLM(folder, threads=1).generate("def", **options).tokens[0]
    file = folder / "generation_config.json"
    config = {**json.loads(file.read_text()), "suppress_tokens": [first, 10**6]}
    file.write_text(json.dumps(config))
    convert(folder, tmp_path / "m.gguf", "gguf:F32")
    answers = []
    for path in (folder, tmp_path / "m.gguf"):
        llm = LLM(path, threads=1)
        answers.append(llm.generate("def", **options).tokens)
        forbidden = answers[-1][0]
        assert first not in answers[-1]
        assert not {first, forbidden} & {
            *llm.generate("def", bad_words=[[forbidden]], **options).tokens
        }
    assert answers[0] == answers[1]
    file.write_text(json.dumps({**config, "suppress_tokens": None, "bad_words_ids": [[first]]}))
    assert LLM(folder, threads=1).generate("def", **options).tokens == answers[0]
    for spoilt in ([1.5], ["a"], 7, [[1]]):
        file.write_text(json.dumps({**config, "suppress_tokens": spoilt}))
        failure(lambda: LLM(folder, threads=1), ModelFormatError, "suppress_tokens")


def test_a_receipt_says_what_was_used(tmp_path: Path) -> None:
    """The model's own values with the request's over them; a machine with others is told so."""
    folder = tmp_path / "model"
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder)
    own = LLM(folder, threads=1).defaults
    assert own
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "top_p": 0.5}

    def opener() -> LLM:
        return LLM(folder, threads=1)

    answer = asyncio.run(replay._again(opener, "/v1/chat/completions", body))
    said = answer["receipt"]["sampling"]
    assert said == {"top_k": 0, "typical_p": 1.0, **own, "top_p": 0.5}
    assert replay.differences(opener, body, answer) == []
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "min_p": 0.25}))
    assert any(line.startswith("sampling") for line in replay.differences(opener, body, answer))
    del answer["receipt"]["sampling"]  # as earlier versions wrote it
    found = replay.differences(opener, body, answer)
    assert not any(line.startswith("sampling") for line in found)
