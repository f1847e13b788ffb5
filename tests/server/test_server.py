"""The server as clients see it: answers are those of `LLM`, whole or in a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import openai
import pytest
from helpers import command, failed
from server_process import ServerProcess, serving

from sterna import LLM
from sterna.cli import serve
from sterna.llm import receipt

PROMPT = "def read_lines(path):\n"
CHAT = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("server"), "nano", "--max-body", "64K") as running:
        yield running


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def events(text: str) -> list[Any]:
    """The data of events, which all are whole; the last one is [DONE]."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_health_and_models(server: ServerProcess, llm: LLM, client: openai.OpenAI) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    (model,) = client.models.list().data
    assert model.id == "nano"
    row = server.http.get("/v1/models/nano").json()
    assert all(row["meta"][key] == llm.info()[key] for key in ("head", "bits"))
    assert row["max_model_len"] == llm.context
    assert server.http.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9, "seed": 7},
        {"temperature": 0.7, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "seed": 1},
        {"temperature": 0.7, "presence_penalty": 0.5, "logit_bias": {"308": 5}, "seed": 1},
        {"stop": ["return"], "temperature": 0},
        {
            "temperature": 1.0, "seed": 2, "dry_multiplier": 0.8, "dry_sequence_breakers": ["e"],
            "xtc_probability": 0.5, "top_n_sigma": 2, "dynatemp_range": 0.3,
            "samplers": ["dry", "top_n_sigma", "xtc", "temperature"],
        },
        {"temperature": 1.0, "seed": 2, "mirostat": 2, "mirostat_tau": 2.5},
    ],
)  # fmt: skip
def test_completion_is_the_models(server: ServerProcess, llm: LLM, options: dict[str, Any]) -> None:
    """Text, reason and counts, in one piece and in a stream."""
    of_llm = dict(options)
    if "logit_bias" in of_llm:
        of_llm["logit_bias"] = {int(k): v for k, v in of_llm["logit_bias"].items()}
    expected = llm.generate(PROMPT, max_tokens=24, **of_llm)
    body = {"prompt": PROMPT, "max_tokens": 24, **options}
    whole = server.post("/v1/completions", **body).json()
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, expected.finish_reason)
    assert whole["usage"]["prompt_tokens"] == expected.stats.n_prompt
    assert whole["usage"]["completion_tokens"] == len(expected.tokens)
    stream = server.post("/v1/completions", **body, stream=True)
    parts = [event["choices"][0] for event in events(stream.text)]
    assert "".join(part["text"] for part in parts) == expected.text
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [
        expected.finish_reason
    ]
    assert stream.headers["content-type"].startswith("text/event-stream")


def test_chat_is_the_models(server: ServerProcess, llm: LLM, client: openai.OpenAI) -> None:
    expected = llm.chat(CHAT, max_tokens=16, temperature=1, seed=3)
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 16, "temperature": 1, "seed": 3}
    done = client.chat.completions.create(model="nano", **asked)
    assert done.choices[0].message.content == expected.text
    assert done.choices[0].message.role == "assistant"
    assert done.system_fingerprint == receipt.fingerprint(llm)
    pieces = [
        c.choices[0].delta.content or ""
        for c in client.chat.completions.create(model="nano", stream=True, **asked)
    ]
    assert "".join(pieces) == expected.text
    chunks = events(server.post("/v1/chat/completions", **asked, stream=True).text)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {(c["id"], c["created"], c["system_fingerprint"]) for c in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], receipt.fingerprint(llm))
    }


def test_parts_of_content(server: ServerProcess) -> None:
    """Text parts are text; an image is refused, by its place."""
    asked = {"max_tokens": 4, "temperature": 0}
    parts = [{"type": "text", "text": PROMPT}]
    whole, apart = (
        server.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": c}], **asked
        ).json()
        for c in (PROMPT, parts)
    )
    assert whole["choices"] == apart["choices"]
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    refused = server.post("/v1/chat/completions", messages=[{"role": "user", "content": image}])
    assert refused.json()["error"]["param"] == "messages[0].content[0]"


def test_usage_in_a_stream(server: ServerProcess) -> None:
    """Every chunk has the field; the last one alone its value, and no choices."""
    body = {"prompt": PROMPT, "max_tokens": 5, "stream": True, "ignore_eos": True}
    *before, last = events(
        server.post("/v1/completions", **body, stream_options={"include_usage": True}).text
    )
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert "usage" not in events(server.post("/v1/completions", **body).text)[-1]


def test_several_prompts_and_choices(server: ServerProcess, llm: LLM) -> None:
    """Choices of a prompt are neighbours, each that of its number; streams tell them apart."""
    prompts = ["import os\n", llm.tokenizer.encode("class A:\n")]
    body = {"n": 2, "max_tokens": 8, "temperature": 1, "seed": 5}
    for prompt in (prompts[0], prompts[1]):
        expected = [
            llm.generate(prompt, max_tokens=8, temperature=1, seed=5, choice=i) for i in (0, 1)
        ]
        whole = server.post("/v1/completions", prompt=prompt, **body).json()["choices"]
        assert [c["text"] for c in whole] == [e.text for e in expected]
    both = server.post("/v1/completions", prompt=[prompts[0], "class A:\n"], **body).json()[
        "choices"
    ]
    assert [c["index"] for c in both] == [0, 1, 2, 3]
    assert [c["text"] for c in both[2:]] == [e.text for e in expected]
    texts = [""] * 4
    for event in events(
        server.post("/v1/completions", prompt=[prompts[0], "class A:\n"], **body, stream=True).text
    ):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [c["text"] for c in both]


def test_echo_has_prompt_logprobs(server: ServerProcess, llm: LLM) -> None:
    """As lm-eval counts on: an entry for each token, the first null, and one for the answer."""
    tokens = llm.tokenizer.encode(PROMPT)
    found = server.post(
        "/v1/completions", prompt=[tokens], echo=True, logprobs=1, max_tokens=1, temperature=0
    ).json()["choices"][0]["logprobs"]
    logprobs = found["token_logprobs"]
    assert len(logprobs) == len(tokens) + 1
    assert logprobs[0] is None
    assert logprobs[1:-1] == llm.logprobs(tokens).tolist()
    logits = llm.logits(tokens)
    for i, top in enumerate(found["top_logprobs"][1:-1]):
        greedy = int(logits[i].argmax()) == tokens[i + 1]
        assert greedy == (logprobs[i + 1] == max(top.values()))
    assert found["tokens"][1:-1] == [llm.tokenizer.decode([t]) for t in tokens[1:]]


def test_an_entry_for_the_end(server: ServerProcess, llm: LLM) -> None:
    """Where the one token that was asked for ends the text, it has its entry all the same."""
    (end,) = llm.tokenizer.eos_ids
    choice = server.post(
        "/v1/completions", prompt=[5, 6], echo=True, logprobs=1, max_tokens=1, temperature=0,
        logit_bias={str(end): 100},
    ).json()["choices"][0]  # fmt: skip
    assert choice["logprobs"]["tokens"][-1] == "<|end|>"
    assert len(choice["logprobs"]["token_logprobs"]) == 3
    assert choice["finish_reason"] == "stop"


def test_chat_logprobs(server: ServerProcess, llm: LLM, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 4, "temperature": 0}
    expected = llm.chat(CHAT, max_tokens=4, temperature=0, logprobs=3)
    done = client.chat.completions.create(model="nano", logprobs=True, top_logprobs=3, **asked)
    content = done.choices[0].logprobs.content
    assert [c.logprob for c in content] == [p.logprob for p in expected.logprobs]
    assert b"".join(bytes(c.bytes) for c in content).decode() == expected.text
    assert [[t.logprob for t in c.top_logprobs] for c in content] == [
        [logprob for _, logprob in p.top] for p in expected.logprobs
    ]


def test_token_ids(server: ServerProcess, llm: LLM) -> None:
    """Of prompt and answer, whole and in a stream; with them a token's probability is asked."""
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 6, "temperature": 1, "seed": 2}
    expected = llm.chat(CHAT, max_tokens=6, temperature=1, seed=2, logprobs=3)
    asked["return_token_ids"] = True
    whole = server.post("/v1/chat/completions", **asked).json()
    chunks = events(server.post("/v1/chat/completions", **asked, stream=True).text)
    ids = [id for chunk in chunks for id in chunk["choices"][0].get("token_ids", ())]
    assert ids == whole["choices"][0]["token_ids"] == expected.tokens
    prompt = chunks[0]["prompt_token_ids"]
    assert prompt == whole["prompt_token_ids"] == llm.chat_tokens(CHAT)
    for i, found in enumerate(expected.logprobs):
        body = {"prompt": [*prompt, *ids[:i]], "allowed_token_ids": [ids[i]], "max_tokens": 1}
        one = server.post("/v1/completions", **body, logprobs=3, ignore_eos=True).json()
        assert one["choices"][0]["logprobs"]["token_logprobs"] == [found.logprob]


def test_without_files(server: ServerProcess) -> None:
    """No folder, no files: said by name."""
    answer = server.http.get("/v1/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_files")


def test_tokenizing(server: ServerProcess, llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    assert server.post("/tokenize", prompt=PROMPT).json()["tokens"] == ids
    plain = llm.tokenizer.encode(PROMPT, add_special=False)
    assert (
        server.post("/tokenize", prompt=PROMPT, add_special_tokens=False).json()["tokens"] == plain
    )
    assert server.post("/tokenize", content=PROMPT).json()["tokens"] == plain
    assert server.post("/tokenize", messages=CHAT).json()["tokens"] == llm.chat_tokens(CHAT)
    assert server.post("/detokenize", tokens=plain).json()["prompt"] == PROMPT
    prompt = server.post("/apply-template", messages=CHAT).json()["prompt"]
    assert prompt == llm.chat_prompt(CHAT)
    info = server.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|end|>"
    assert info["chat_template"] == llm.template.source


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("completions", {}, 400, "prompt"),
        ("completions", {"prompt": 1}, 400, "prompt"),
        ("completions", {"prompt": []}, 400, "prompt"),
        ("completions", {"prompt": ["a", 1]}, 400, "prompt"),
        ("completions", {"prompt": [5000]}, 400, "prompt"),
        ("completions", {"prompt": "a", "frequency_penalty": 3}, 400, "frequency_penalty"),
        ("completions", {"prompt": "a", "top_a": 1}, 400, "top_a"),
        ("completions", {"prompt": "a", "n": 100}, 400, "n"),
        ("completions", {"prompt": "a", "best_of": 3}, 400, "best_of"),
        ("completions", {"prompt": "a", "logprobs": 1000}, 400, "logprobs"),
        ("completions", {"prompt": "a", "logit_bias": {"": 1}}, 400, "logit_bias"),
        ("completions", {"prompt": "a", "logit_bias": {"5": 101}}, 400, "logit_bias"),
        ("completions", {"prompt": "a", "max_tokens": -2}, 400, "max_tokens"),
        ("completions", {"prompt": "a", "seed": 1 << 64}, 400, "seed"),
        ("completions", {"prompt": "a", "suffix": "b"}, 400, "suffix"),
        ("completions", {"prompt": "a", "timeout": 0}, 400, "timeout"),
        ("completions", {"prompt": "a", "model": "other"}, 404, "model"),
        ("completions", {"prompt": "a" * 70_000}, 413, None),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "boss"}]}, 400, "messages[0].role"),
        ("chat/completions", {"messages": CHAT * 5000}, 413, None),
        ("chat/completions", {"messages": CHAT, "top_logprobs": 1}, 400, "top_logprobs"),
        ("chat/completions", {"messages": CHAT, "audio": {}}, 400, "audio"),
    ],
)
def test_refusals(
    server: ServerProcess, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    """An unsupported field that would change the answer is an error that names it."""
    answer = server.post(f"/v1/{path}", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["type"]
    assert error["message"].isprintable()


def test_harmless_fields(server: ServerProcess) -> None:
    """A field that changes no answer is accepted with any value."""
    body = {"user": "me", "metadata": {"a": 1}, "store": True, "service_tier": "auto"}
    answer = server.post("/v1/completions", prompt="a", max_tokens=1, **body)
    assert answer.status_code == 200
    absent = {
        "audio": None,
        "functions": None,
        "tools": None,
        "response_format": None,
        "stop": None,
    }
    answer = server.post("/v1/chat/completions", messages=CHAT, max_tokens=1, **body, **absent)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"prompt": "\\ud800"}', b"\xff", b'{"prompt": NaN}',
             b'{"prompt": ' + b"[" * 70 + b"]" * 70 + b"}", b"\xef\xbb\xbf", b"null"]
)  # fmt: skip
def test_bodies_that_are_none(server: ServerProcess, body: bytes) -> None:
    answer = server.http.post("/v1/completions", content=body)
    assert answer.status_code in (400, 413)
    assert answer.json()["error"]["message"]


def test_errors_of_clients(server: ServerProcess, client: openai.OpenAI) -> None:
    """OpenAI's own client knows the kinds of errors."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="nano", prompt="a", temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    assert server.http.get("/nowhere").json()["error"]["type"] == "not_found_error"
    assert server.http.get("/v1/completions").status_code == 405


def test_hosts_and_origins(server: ServerProcess) -> None:
    """A page elsewhere cannot ask, under no name."""
    for headers in (
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ):
        assert server.http.get("/v1/models", headers=headers).status_code == 403
    own = server.url.removeprefix("http://")
    for headers in ({"host": "localhost:1"}, {"origin": server.url, "host": own}):
        answer = server.http.get("/v1/models", headers=headers)
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_request_ids(server: ServerProcess) -> None:
    given = server.http.get("/health", headers={"x-request-id": "my-1"}).headers["x-request-id"]
    assert given == "my-1"
    made = server.http.get("/health", headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
    assert made.startswith("req-")


def test_metrics_and_log(server: ServerProcess) -> None:
    """Figures are of requests; a line of log has no word of the prompt."""
    word = "zebra_crossing"
    answer = server.post("/v1/completions", prompt=f"{word} = 1\n", max_tokens=3, ignore_eos=True)
    text = server.http.get("/metrics").text
    assert 'sterna_request_success_total{finished_reason="length",model_name="nano"}' in text
    assert answer.json()["id"] in server.log
    assert word not in server.log


def test_openapi(server: ServerProcess) -> None:
    document = server.http.get("/openapi.json").json()
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert "prompt" in document["components"]["schemas"][name]["required"]


def test_receipts(server: ServerProcess, llm: LLM) -> None:
    """Digests of the prompt and the answer; a seed that nobody named replays the answer."""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 1}
    first = server.post("/v1/completions", **body, return_token_ids=True).json()
    choice, found = first["choices"][0], first["receipt"]
    assert found["prompt_sha256"] == receipt.digest([llm.tokenizer.encode(PROMPT)])
    assert found["tokens_sha256"] == receipt.digest([choice["token_ids"]])
    again = server.post("/v1/completions", **body, seed=found["seed"]).json()
    assert again["receipt"] == found


def test_verify_answer(server: ServerProcess, tmp_path: Path) -> None:
    """Another process makes the answer again; one token that differs is found."""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 1, "n": 2}
    answer = server.post("/v1/completions", **body).json()
    files = [tmp_path / name for name in ("request.json", "answer.json")]
    for file, value in zip(files, (body, answer), strict=True):
        file.write_text(json.dumps(value))
    same = command("verify-answer", *map(str, files))
    assert same.exit_code == 0, same.output
    other = command("verify-answer", *map(str, files), "--head", "int8")
    assert other.exit_code == 1
    assert "system_fingerprint" in other.output
    files[0].write_text(json.dumps({**body, "max_tokens": 9}))
    changed = command("verify-answer", *map(str, files))
    assert changed.exit_code == 1
    assert "tokens_sha256" in changed.output
    failed(command("verify-answer", str(files[0]), str(files[0])), "receipt")


def test_variables_have_the_options_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of `sterna serve` can be given as the variable that its help names."""
    context = click.Context(serve.command, auto_envvar_prefix="STERNA")
    options = [o for o in serve.command.params if isinstance(o, click.Option)]
    assert len(options) > 40
    for option in options:
        name = f"STERNA_{option.opts[0].removeprefix('--').replace('-', '_').upper()}"
        monkeypatch.setenv(name, "given")
        assert option.resolve_envvar_value(context) == "given", name
