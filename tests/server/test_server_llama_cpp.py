"""/completion as llama.cpp's clients use it: its defaults, its order of samplers, its settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_process import ServerProcess

from sterna import LLM
from sterna.sampling_params import SAMPLERS

PROMPT = "def read_lines(path):\n"
#: What llama.cpp's server takes for a request that says nothing; the model's own values come first.
DEFAULTS: dict[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64,
    "samplers": SAMPLERS,
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


def test_defaults(server: ServerProcess, llm: LLM) -> None:
    """Without fields, its samplers in its order; OpenAI's endpoints keep theirs."""
    own = {name: value for name, value in DEFAULTS.items() if name not in llm.defaults}
    assert own.keys() < DEFAULTS.keys()
    texts = set()
    for seed in range(6):
        body = {"prompt": PROMPT, "n_predict": 12, "seed": seed}
        answer = server.post("/completion", **body).json()
        expected = llm.generate(PROMPT, max_tokens=12, seed=seed, **own).text
        assert answer["content"] == expected
        hot = {"temperature": 1.6, "top_p": 0.7}
        changed = server.post("/completion", **body, **hot).json()
        expected = llm.generate(PROMPT, max_tokens=12, seed=seed, **{**own, **hot}).text
        assert changed["content"] == expected
        texts |= {answer["content"], changed["content"]}
        plain = server.post("/v1/completions", prompt=PROMPT, max_tokens=12, seed=seed).json()
        assert plain["choices"][0]["text"] == llm.generate(PROMPT, max_tokens=12, seed=seed).text
    assert len(texts) > 3


def test_settings_are_those_in_effect(server: ServerProcess, llm: LLM) -> None:
    """As llama.cpp reports them, whole and in the last event of a stream, and by /props."""
    sent: dict[str, Any] = {
        "temperature": 0.9, "dynatemp_range": 0.2, "dynatemp_exponent": 1.5, "top_k": 30,
        "top_p": 0.9, "min_p": 0.1, "top_n_sigma": 2.0, "xtc_probability": 0.3,
        "xtc_threshold": 0.2, "typical_p": 0.8, "repeat_last_n": 20, "repeat_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "dry_multiplier": 0.8,
        "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 100,
        "dry_sequence_breakers": ["\n", "#"], "mirostat": 0, "mirostat_tau": 4.0,
        "mirostat_eta": 0.2, "seed": 5, "stop": ["zzz"], "n_predict": 3, "ignore_eos": True,
        "n_probs": 2, "samplers": ["penalties", "dry", "top_k", "typ_p", "xtc", "temperature"],
    }  # fmt: skip
    whole = server.post("/completion", prompt=PROMPT, **sent, logit_bias=[[5, -1.5]]).json()
    found = whole["generation_settings"]
    assert {name: found[name] for name in sent} == sent
    assert found["logit_bias"] == [{"bias": -1.5, "token": 5}]
    assert (found["max_tokens"], found["stream"], found["lora"]) == (3, False, [])
    stream = server.post("/completion", prompt=PROMPT, **sent, stream=True).text
    last = json.loads(stream.rstrip().split("\n\n")[-1][6:])
    assert last["generation_settings"] == {**found, "stream": True, "logit_bias": []}
    plain = server.post("/completion", prompt=PROMPT, n_predict=1).json()["generation_settings"]
    params = server.http.get("/props").json()["default_generation_settings"]["params"]
    for name in plain.keys() - {"seed", "n_predict", "max_tokens"}:
        assert params[name] == plain[name], name
    assert {**DEFAULTS, **llm.defaults}.items() - {("samplers", SAMPLERS)} <= {
        (n.replace("repeat_penalty", "repetition_penalty"), v)
        for n, v in params.items()
        if isinstance(v, (int, float))
    }


def test_unknown_samplers_are_left_out(server: ServerProcess) -> None:
    """As llama.cpp leaves them out; here a header says so. Other endpoints refuse them."""
    names = ["top_k", "tfs_z", "typical_p", "top_p", "temperature"]
    answer = server.post("/completion", prompt=PROMPT, n_predict=2, samplers=names)
    settings = answer.json()["generation_settings"]
    assert settings["samplers"] == ["top_k", "top_p", "temperature"]
    assert "tfs_z" in answer.headers["x-sterna-warning"]
    refused = server.post("/v1/completions", prompt=PROMPT, max_tokens=2, samplers=names)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "samplers")
