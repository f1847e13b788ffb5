"""Doors of other servers: what clients of ollama, llama.cpp and LM Studio ask and get."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from server_process import ServerProcess, serving

import sterna
from sterna import LLM

PROMPT = "def read_lines(path):\n"
SAID = [{"role": "user", "content": PROMPT}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


def lines(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_ollama_chat(server: ServerProcess, llm: LLM) -> None:
    """Whole and as lines of JSON, which is the default; with the answer of `LLM`."""
    options = {"num_predict": 12, "temperature": 0.8, "seed": 3, "num_ctx": 4096, "top_k": 20}
    expected = llm.chat(SAID, max_tokens=12, temperature=0.8, seed=3, top_k=20)
    asked = {"model": "nano:latest", "messages": SAID, "options": options, "keep_alive": "5m"}
    whole = server.post("/api/chat", **asked, stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": expected.text}
    assert (whole["done"], whole["done_reason"]) == (True, expected.finish_reason)
    assert whole["prompt_eval_count"] == expected.stats.n_prompt
    assert whole["eval_count"] == len(expected.tokens)
    *parts, last = lines(server.post("/api/chat", **asked))
    assert "".join(part["message"]["content"] for part in parts) == expected.text
    assert not any(part["done"] for part in parts)
    assert (last["done"], last["eval_count"]) == (True, len(expected.tokens))


def test_ollama_generate(server: ServerProcess, llm: LLM) -> None:
    """With the chat template, and raw."""
    options = {"num_predict": 8, "temperature": 0}
    asked = {"model": "nano", "prompt": PROMPT, "options": options}
    templated = llm.chat(SAID, max_tokens=8, temperature=0).text
    parts = lines(server.post("/api/generate", **asked))
    assert "".join(part["response"] for part in parts) == templated
    raw = server.post("/api/generate", **asked, raw=True, stream=False).json()
    assert raw["response"] == llm.generate(PROMPT, max_tokens=8, temperature=0).text
    loaded = server.post("/api/generate", model="nano", stream=False).json()
    assert (loaded["response"], loaded["done_reason"]) == ("", "load")


def test_ollama_formats_and_tools(server: ServerProcess) -> None:
    asked = {"model": "nano", "messages": SAID, "stream": False}
    greedy = {"num_predict": 64, "temperature": 0}
    held = server.post("/api/chat", **asked, format=SCHEMA, options=greedy).json()
    assert [*json.loads(held["message"]["content"])] == ["a"]
    held = server.post("/api/generate", model="nano", prompt="{", format="json", stream=False,
                       options={"num_predict": 40, "temperature": 0}).json()  # fmt: skip
    assert held["response"].lstrip().startswith("{")
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    call = {"function": {"name": "look", "arguments": {"a": True}}}
    result = {"role": "tool", "tool_name": "look", "content": "seen"}
    said = [*SAID, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
    answer = server.post(
        "/api/chat", model="nano", messages=said, tools=[tool], stream=False, think=False,
        options={"num_predict": 4},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_ollama_refuses_in_its_form(server: ServerProcess) -> None:
    for path, body in (
        ("/api/chat", {"model": "other", "messages": SAID}),
        ("/api/chat", {"model": "nano", "messages": SAID, "options": {"mirostat": 3}}),
        ("/api/chat", {"model": "nano", "messages": SAID, "format": "xml"}),
        ("/api/show", {"model": "other"}),
    ):
        answer = server.post(path, **body)
        assert answer.status_code in (400, 404), path
        assert isinstance(answer.json()["error"], str)
    unknown = server.post("/api/chat", model="nano", messages=SAID, stream=False,
                          options={"num_predict": 1, "of_no_sampler": 1})  # fmt: skip
    assert "of_no_sampler" in unknown.headers["x-sterna-warning"]


def test_ollama_models(server: ServerProcess, llm: LLM) -> None:
    """Apps probe these paths before they offer a model."""
    assert server.http.head("/").status_code == 200
    assert server.http.get("/api/version").json()["version"]
    (row,) = server.http.get("/api/tags").json()["models"]
    assert row["name"] == "nano:latest"
    (row,) = server.http.get("/api/ps").json()["models"]
    assert row["context_length"] == llm.context
    shown = server.post("/api/show", model="nano").json()
    kind = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{kind}.context_length"] == llm.context
    assert "completion" in shown["capabilities"]
    assert server.post("/api/pull", model="nano").json() == {"status": "success"}


def test_client_of_ollama(server: ServerProcess, llm: LLM) -> None:
    """The package itself."""
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url)
    options = {"num_predict": 8, "temperature": 0}
    expected = llm.chat(SAID, max_tokens=8, temperature=0).text
    assert client.chat("nano", SAID, options=options).message.content == expected
    pieces = client.chat("nano", SAID, options=options, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == expected
    assert client.generate("nano", PROMPT, options=options).response == expected
    assert [m.model for m in client.list().models] == ["nano:latest"]
    assert client.show("nano").capabilities
    assert client.ps().models[0].context_length == llm.context
    with pytest.raises(ollama.ResponseError, match="must be one of"):
        client.chat("other", SAID)
    if hasattr(client, "system_one"):
        question = {"type": "noul", "instructions": "Is it code?"}
        said = client.system_one(model="nano", state=PROMPT, questions={"code": question})
        assert 0 < said.answers["code"].noul < 1


def test_llama_cpp(server: ServerProcess, llm: LLM) -> None:
    expected = llm.generate(PROMPT, max_tokens=8, temperature=0)
    asked = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "cache_prompt": True}
    whole = server.post("/completion", **asked, n_probs=2, return_tokens=True).json()
    assert (whole["content"], whole["tokens"]) == (expected.text, expected.tokens)
    assert (whole["stop_type"], whole["tokens_predicted"]) == ("limit", 8)
    assert len(whole["completion_probabilities"][0]["top_logprobs"]) == 2
    stream = server.post("/completion", **asked, stream=True)
    parts = [json.loads(part[6:]) for part in stream.text.split("\n\n") if part]
    assert "".join(part["content"] for part in parts) == expected.text
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    word = server.post("/completion", **{**asked, "n_predict": 40}, stop=["\n"]).json()
    assert (word["stop_type"], word["stopping_word"]) == ("word", "\n")
    ids = llm.tokenizer.encode(PROMPT)
    assert server.post("/completion", **{**asked, "prompt": ids}).json()["content"] == expected.text
    for bias, wanted in ((5.0, 5.0), (False, -100.0)):
        first = expected.tokens[0]
        biased = llm.generate(PROMPT, max_tokens=8, temperature=0, logit_bias={first: wanted})
        answer = server.post("/completion", **asked, logit_bias=[[first, bias]])
        assert answer.json()["content"] == biased.text
    for refused in ({"mirostat": 3}, {"logit_bias": [[5, True]]}, {"logit_bias": [["", 1]]}):
        assert server.post("/completion", **asked, **refused).status_code == 400


def test_llama_cpp_properties(server: ServerProcess, llm: LLM) -> None:
    props = server.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == llm.context
    assert props["chat_template"] == (llm.template.source if llm.template else "")
    slots = server.http.get("/slots").json()
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    assert server.http.get("/lora-adapters").json() == []
    infill = server.post("/infill", input_prefix="a", input_suffix="b", n_predict=1)
    assert infill.status_code in (200, 400)  # by whether the model has tokens for it


def test_where_clients_look_for_the_context(server: ServerProcess, llm: LLM) -> None:
    row = server.http.get("/v1/models/nano").json()
    assert row["context_length"] == row["max_model_len"] == llm.context
    assert row["meta"]["n_ctx_train"] == llm.model.config.max_position
    assert "completion" in row["capabilities"]
    (row,) = server.http.get("/models").json()["data"]
    assert row["id"] == "nano"
    row = server.http.get("/api/v0/models/nano").json()
    assert (row["state"], row["loaded_context_length"]) == ("loaded", llm.context)
    answer = server.post("/api/v0/chat/completions", messages=SAID, max_tokens=1)
    assert answer.json()["object"] == "chat.completion"
    assert server.http.get("/api/v0/models/other").json()["error"]["code"] == "model_not_found"


def test_items_of_responses(server: ServerProcess) -> None:
    """By OpenAI's client: what a response answered, how long it is, and conversations."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": "nano", "temperature": 0, "max_output_tokens": 2}
    first = client.responses.create(input="def f(x):", **asked)
    again = client.responses.create(input="more", previous_response_id=first.id, **asked)
    texts = [
        item.content[0].text for item in client.responses.input_items.list(again.id, order="asc")
    ]
    assert texts == ["def f(x):", first.output_text, "more"]
    count = client.responses.input_tokens.count(input="def f(x):", model="nano")
    assert count.input_tokens == first.usage.input_tokens
    begun = client.conversations.create(items=[{"role": "user", "content": "def f(x):"}])
    client.conversations.items.create(begun.id, items=[{"role": "assistant", "content": "a"}])
    client.responses.create(input="more", conversation=begun.id, **asked)
    items = list(client.conversations.items.list(begun.id, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
    client.conversations.items.delete(items[0].id, conversation_id=begun.id)
    assert len(list(client.conversations.items.list(begun.id))) == 3
    assert client.conversations.delete(begun.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(begun.id)


def test_texts_that_are_too_long(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """ollama cuts them unless told not to; others refuse them unless told to; cuts are counted."""
    folder = tmp_path / "embedder"
    shutil.copytree(checkpoint("bert"), folder)
    kind = "sentence_transformers.models"
    chain = [
        {"idx": i, "name": str(i), "path": path, "type": f"{kind}.{name}"}
        for i, (name, path) in enumerate((("Transformer", ""), ("Pooling", "pool")))
    ]
    (folder / "modules.json").write_text(json.dumps(chain))
    (folder / "pool").mkdir()
    mean = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "pool" / "config.json").write_text(json.dumps(mean))
    llm = LLM(folder, threads=1)
    long = "the quick brown fox " * 200
    with serving(tmp_path, str(folder)) as running:
        expected = llm.embed([long, "a"], truncate=True).tolist()
        answer = running.post("/api/embed", model="embedder", input=[long, "a"])
        np.testing.assert_array_equal(np.float32(answer.json()["embeddings"]), expected)
        assert "1 of 2 texts were truncated" in answer.headers["x-sterna-warning"]
        (one, none) = llm.embedder.inputs([long, "a"], truncate=True).tokens
        assert answer.json()["prompt_eval_count"] == len(one) + len(none)
        refused = running.post("/api/embed", model="embedder", input=long, truncate=False)
        assert "at most" in refused.json()["error"]
        first = llm.embed(long, truncate="start").tolist()
        for path in ("/v1/embeddings", "/api/v0/embeddings"):
            for fields, vector in (
                ({"truncate": True}, expected[0]), ({"truncate": "END"}, expected[0]),
                ({"truncate": "start"}, first[0]), ({"truncate_prompt_tokens": -1}, expected[0]),
                ({"truncate_prompt_tokens": 9}, llm.embed(long, truncate=9).tolist()[0]),
                ({}, None), ({"truncate": "NONE"}, None), ({"truncate": "MIDDLE"}, None),
                ({"truncate_prompt_tokens": 0}, None),
            ):  # fmt: skip
                answer = running.post(path, input=long, **fields)
                if vector is None:
                    assert answer.status_code == 400, fields
                    assert answer.json()["error"]["param"] in (*fields, "input")
                else:
                    found = answer.json()["data"][0]["embedding"]
                    np.testing.assert_array_equal(np.float32(found), vector)
                    assert "truncated, by" in answer.headers["x-sterna-warning"]


def test_llama_cpp_grammars(server: ServerProcess) -> None:
    """GBNF and Lark, told apart by their rules, where llama.cpp and vLLM have a grammar."""
    said = {"temperature": 1, "seed": 3}
    for grammar in (
        'root ::= "yes" | "no"',
        'start: "yes" | "no"',
        'root ::= a\na ::= "yes" | "no"',
    ):
        done = server.post("/completion", prompt=PROMPT, n_predict=8, grammar=grammar, **said)
        assert done.json()["content"] in ("yes", "no"), done.text
        for path, body in (
            ("chat/completions", {"messages": SAID}),
            ("completions", {"prompt": "a"}),
        ):
            for fields in ({"grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
                answer = server.post(f"/v1/{path}", **body, **fields, max_tokens=8, **said)
                assert answer.status_code == 200, answer.text
                choice = answer.json()["choices"][0]
                assert choice.get("text", choice.get("message", {}).get("content")) in ("yes", "no")
    schema = {"enum": ["yes", "no"]}
    chat = server.post("/v1/chat/completions", messages=SAID, json_schema=schema, max_tokens=9)
    assert json.loads(chat.json()["choices"][0]["message"]["content"]) in ("yes", "no")
    for fields, param in (
        ({"grammar": "root ::= a"}, "grammar"), ({"grammar": "start: ("}, "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": schema}, "grammar"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema"),
    ):  # fmt: skip
        for path, body in (
            ("/completion", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": SAID}),
        ):
            answer = server.post(path, **body, **fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for passing in ({"grammar": ""}, {"json_schema": {}}):
        assert server.post("/completion", prompt="a", n_predict=1, **passing).status_code == 200


def test_llama_cpp_biases(server: ServerProcess, llm: LLM) -> None:
    """Texts stand for their tokens."""
    first = llm.generate(PROMPT, max_tokens=8, temperature=0)
    text = llm.tokenizer.decode(first.tokens[:2])
    ids = llm.tokenizer.encode(text, add_special=False)
    biased = llm.generate(
        PROMPT, max_tokens=8, temperature=0, logit_bias=dict.fromkeys(ids, -100.0)
    ).text
    asked = {"prompt": PROMPT, "temperature": 0}
    for bias in ([[text, False]], {text: False}, [[id, False] for id in ids]):
        done = server.post("/completion", **asked, n_predict=8, logit_bias=bias).json()
        assert done["content"] == biased, bias
        whole = server.post("/v1/completions", **asked, max_tokens=8, logit_bias=bias).json()
        assert whole["choices"][0]["text"] == biased


def test_windows_of_penalties(server: ServerProcess, llm: LLM) -> None:
    """The last tokens of prompt and answer count, 64 unless a client of llama.cpp or ollama says
    otherwise; in OpenAI's endpoints, all do unless it is said."""
    begin = "import os\nimport sys\n\n\ndef open_file(path):\n    return open(path)\n\n\n"
    prompt, asked = begin + "x = 1\n" * 30 + PROMPT, {"max_tokens": 16, "temperature": 0}
    assert len(llm.tokenizer.encode(prompt)) > 64
    for fields in (
        {"repetition_penalty": 1.5}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5}
    ):  # fmt: skip
        found = []
        for last in (None, 64, 5, 0, -1):
            sent = dict(fields) | ({} if last is None else {"repeat_last_n": last})
            whole = server.post("/v1/completions", prompt=prompt, **asked, **sent).json()
            expected = llm.generate(prompt, **asked, **sent).text
            assert whole["choices"][0]["text"] == expected, sent
            found.append(expected)
            words = {n.replace("repetition", "repeat"): value for n, value in sent.items()}
            here = llm.generate(prompt, **asked, **{"repeat_last_n": 64, **sent}).text
            options = {"num_predict": 16, "temperature": 0, **words}
            raw = {"model": "nano", "prompt": prompt, "raw": True, "stream": False}
            done = server.post("/completion", prompt=prompt, n_predict=16, temperature=0, **words)
            assert done.json()["content"] == here, sent
            ollama = server.post("/api/generate", **raw, options=options).json()
            assert ollama["response"] == here, sent
        assert len(set(found[:4])) == 4, found
    refused = server.post("/completion", prompt="a", repeat_last_n=-2)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "repeat_last_n")


def test_loading_and_unloading(tmp_path: Path) -> None:
    """By llama.cpp's paths; a model that answers stays."""

    def states(running: ServerProcess) -> dict[str, str]:
        rows = running.http.get("/models").json()["data"]
        return {row["id"]: row["status"]["value"] for row in rows}

    nano = str(Path(sterna.__file__).parent / "data" / "nano")
    names = ["--served-name", "nano", "--served-name", "other"]
    with serving(tmp_path, "nano", nano, *names) as running:
        assert states(running) == {"nano": "loaded", "other": "unloaded"}
        assert running.post("/models/load", model="other").json() == {"success": True}
        assert states(running) == {"nano": "loaded", "other": "loaded"}
        assert running.post("/models/unload", model="nano").json() == {"success": True}
        assert states(running) == {"nano": "unloaded", "other": "loaded"}
        body = {"model": "other", "prompt": ["a"] * 8, "max_tokens": 900, "ignore_eos": True}
        with running.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as told:
            lines = told.iter_lines()  # which would close the stream if it were dropped
            next(lines)
            busy = running.post("/models/unload", model="other")
            assert (busy.status_code, busy.json()["error"]["param"]) == (409, "model")
        for model, status in (("nano", 400), ("none", 404)):
            answer = running.post("/models/unload", model=model)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, "model")
        assert running.post("/models/load", model="none").status_code == 404
        answer = running.post("/v1/completions", model="nano", prompt="a", max_tokens=1)
        assert answer.status_code == 200
        assert states(running)["nano"] == "loaded"
