"""Images over HTTP: three protocols and their clients, addresses that are fetched, refusals."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import seeing_folders
from seeing_folders import data_url, png
from server_process import ServerProcess, serving

from sterna import LLM
from sterna.chat.image_parts import behind_results
from sterna.errors import RequestError
from sterna.llm.system_messages import render_with_system
from sterna.server import request_images
from sterna.server.errors import ApiError
from sterna.server.request_images import RequestImage

OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}
TEXT = "What?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_folders.write(tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    args = ("nano", str(folder), "--allow-image-urls", "127.0.0.1")
    with serving(tmp_path_factory.mktemp("server"), *args) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    """The answer of the library, and the digest of the image that it saw."""
    llm = LLM(folder, threads=1, cache=False)
    part = {"type": "image", "image": png()}
    said = [{"role": "user", "content": [part, {"type": "text", "text": TEXT}]}]
    (image,) = llm.renderer.prepare(said).images
    done = llm.chat(said, **OPTIONS)
    return done.text, done.stats.n_prompt, image.image.digest.hex()


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    """A web server of images; returns its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            places = {"/loop": "/loop", "/away": "http://localhost:1/a.png", "/on": "/a.png"}
            if where := places.get(self.path):
                self.send_response(302)
                self.send_header("Location", where)
                self.end_headers()
            elif self.path == "/a.png":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(png())
            elif self.path == "/long":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(bytes(5000))
            else:
                self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def of_openai(url: str) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": TEXT}]
    return [{"role": "user", "content": parts}]


def test_openai_chat(server: ServerProcess, expected: Any, files: str) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    text, tokens, digest = expected
    for url in (data_url(png()), f"{files}/a.png", f"{files}/on"):
        done = client.chat.completions.create(model="seeing", messages=of_openai(url), **OPTIONS)
        assert done.choices[0].message.content == text
        assert done.usage is not None
        assert done.usage.prompt_tokens == tokens
        assert done.model_extra is not None
        assert done.model_extra["receipt"]["images_sha256"] == [digest]
    stream = client.chat.completions.create(
        model="seeing", messages=of_openai(data_url(png())), stream=True, **OPTIONS
    )
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == text


def test_lists_say_that_it_sees(server: ServerProcess) -> None:
    shown = server.http.get("/props", params={"model": "seeing"}).json()  # it is loaded by this
    assert shown["modalities"] == {"vision": True, "audio": False}
    assert "vision" in server.http.get("/v1/models/seeing").json()["capabilities"]


def test_openai_responses(server: ServerProcess, expected: Any) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    image: Any = {"type": "input_image", "image_url": data_url(png()), "detail": "auto"}
    parts = [image, {"type": "input_text", "text": TEXT}]
    first = client.responses.create(
        model="seeing", input=[{"role": "user", "content": parts}],
        max_output_tokens=6, temperature=0.0,
    )  # fmt: skip
    assert first.output_text == expected[0]
    second = client.responses.create(
        model="seeing", input="And now?", previous_response_id=first.id, max_output_tokens=2
    )
    assert second.usage is not None
    assert second.usage.input_tokens > expected[1]


def test_anthropic(server: ServerProcess, expected: Any) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    data = base64.b64encode(png()).decode()
    sources = (
        {"type": "base64", "media_type": "image/png", "data": data},
        {"type": "url", "url": data_url(png())},
    )
    for source in sources:
        parts = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
        asked = {"model": "seeing", "messages": [{"role": "user", "content": parts}]}
        done = client.messages.create(**asked, max_tokens=6, extra_body={"temperature": 0.0})
        assert done.content[0].text == expected[0]
        assert client.messages.count_tokens(**asked).input_tokens == expected[1]


def test_ollama(server: ServerProcess, expected: Any) -> None:
    image = base64.b64encode(png()).decode()
    common = {
        "model": "seeing", "stream": False, "options": {"num_predict": 6, "temperature": 0.0},
    }  # fmt: skip
    said = [{"role": "user", "content": TEXT, "images": [image]}]
    done = server.post("/api/chat", messages=said, **common).json()
    assert done["message"]["content"] == expected[0]
    assert done["prompt_eval_count"] == expected[1]
    done = server.post("/api/generate", prompt=TEXT, images=[image], **common).json()
    assert done["response"] == expected[0]
    assert "vision" in server.post("/api/show", model="seeing").json()["capabilities"]
    for images in ("text", [1], ["aGk="]):
        said[0]["images"] = images
        assert server.post("/api/chat", messages=said, **common).status_code == 400
    raw = server.post("/api/generate", prompt=TEXT, images=[image], raw=True, **common)
    assert raw.status_code == 400


def test_results_of_tools(server: ServerProcess, folder: Path) -> None:
    """In their place where the template shows them there, else in the user's next message."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": data_url(png())}}
    result = {"role": "tool", "tool_call_id": "c", "content": [
        {"type": "text", "text": "Seen."}, image]}  # fmt: skip
    said = [
        {"role": "user", "content": "Look."}, {"role": "assistant", "tool_calls": [call]}, result,
    ]  # fmt: skip
    asked = {"model": "seeing", "messages": said}
    rendered = server.post("/apply-template", **asked).json()["prompt"]
    assert rendered.count("<start_of_image>") == 1
    assert "Seen." in rendered
    count = server.post("/tokenize", **asked).json()["count"]
    source = {"type": "base64", "media_type": "image/png", "data": data_url(png())[22:]}
    blocks = [{"type": "text", "text": "Seen."}, {"type": "image", "source": source}]
    theirs = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": blocks}]},
    ]  # fmt: skip
    counted = server.post("/v1/messages/count_tokens", model="seeing", messages=theirs).json()
    assert counted["input_tokens"] == count
    items = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "Seen."},
            {"type": "input_image", "image_url": data_url(png())}]},
    ]  # fmt: skip
    done = server.post("/v1/responses", model="seeing", input=items, max_output_tokens=1).json()
    assert done["usage"]["input_tokens"] == count
    moved = behind_results([*said, {"role": "user", "content": "And?"}])
    assert moved[2]["content"] == "Seen."
    assert moved[3]["content"] == [image, {"type": "text", "text": "And?"}]
    assert behind_results(said)[3] == {"role": "user", "content": [image]}


def test_a_photo(server: ServerProcess) -> None:
    """Of 12 MB, in base64, by default."""
    photo = png() + bytes(12_000_000)  # decoders stop at the image's end
    done = server.post(
        "/v1/chat/completions", model="seeing", messages=of_openai(data_url(photo)), max_tokens=1
    )
    assert done.status_code == 200


def test_tokens_and_templates(server: ServerProcess, expected: Any) -> None:
    asked = {"model": "seeing", "messages": of_openai(data_url(png()))}
    assert server.post("/tokenize", **asked).json()["count"] == expected[1]
    rendered = server.post("/apply-template", **asked).json()["prompt"]
    assert rendered == "<s>user: <start_of_image>What?\nassistant: "


def test_a_template_without_system_prompt() -> None:
    """It opens the first message, before the image."""
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "image"}]}]

    def render(messages: list[dict[str, Any]]) -> str:
        if messages[0]["role"] == "system":
            raise RequestError("no system prompt")
        return repr(messages)

    found = render_with_system(said, render)
    assert found == repr([
        {"role": "user", "content": [{"type": "text", "text": "S\n\n"}, {"type": "image"}]}
    ])  # fmt: skip


def test_text_next_to_images(server: ServerProcess) -> None:
    """It stays apart."""
    said = of_openai(data_url(png()))
    said[0]["content"] += [{"type": "text", "text": " More."}]
    rendered = server.post("/apply-template", model="seeing", messages=said).json()["prompt"]
    assert "<start_of_image>What? More.\n" in rendered


def part(**fields: Any) -> Any:
    return [{"role": "user", "content": [fields]}]


REFUSED: dict[str, tuple[Any, str]] = {
    "file": (part(type="image", image="/etc/passwd"), "must be an image with a URL"),
    "path": (part(type="image", path="/etc/passwd"), "must be an image with a URL"),
    "file url": (of_openai("file:///etc/passwd"), "must be a data: URL, or an address with http"),
    "bare path": (of_openai("/etc/passwd"), "must be a data: URL"),
    "other host": (of_openai("http://169.254.169.254/x"), "--allow-image-urls"),
    "no image": (of_openai("data:image/png;base64,aGk="), "must be PNG"),
    "no base64": (of_openai("data:image/png;base64,é"), "base64"),
    "empty": (part(type="image_url", image_url={"url": ""}), "must be an image with a URL"),
    "file id": (part(type="input_image", file_id="f"), "must be an image with a URL"),
    "audio": (part(type="input_audio", input_audio={}), "type text or image_url"),
    "too many": (part(type="image_url", image_url=data_url(png(1, 1))) * 65, "at most 64 images"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(server: ServerProcess, name: str) -> None:
    messages, message = REFUSED[name]
    answer = server.post("/v1/chat/completions", model="seeing", messages=messages, max_tokens=1)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert "root:" not in answer.text


def test_addresses_that_are_not_fetched(server: ServerProcess, files: str) -> None:
    for path, message in {
        "/loop": "within 3 redirects", "/away": "--allow-image-urls", "/none": "answered 404",
        "/long": "must be PNG",
    }.items():  # fmt: skip
        answer = server.post(
            "/v1/chat/completions", model="seeing", messages=of_openai(files + path)
        )
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


def test_a_model_of_text(server: ServerProcess) -> None:
    for path, body in {
        "/v1/chat/completions": {"messages": of_openai(data_url(png()))},
        "/v1/messages": {"messages": part(
            type="image", source={"type": "url", "url": data_url(png())}), "max_tokens": 1},
        "/v1/responses": {"input": part(type="input_image", image_url=data_url(png()))},
    }.items():  # fmt: skip
        answer = server.post(path, model="nano", **body)
        assert answer.status_code == 400
        assert "nano reads only text; use a model that sees" in json.dumps(answer.json())


def fetched(url: str, *hosts: str) -> Any:
    return RequestImage(url, "messages[0]").source(hosts)


def name_server_is_away(*address: object, **options: object) -> Any:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def test_hosts(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host must be named; one that a pattern or a redirect names must be public."""
    url = f"{files}/a.png"
    assert fetched(url, "127.0.0.1") == png()
    for hosts in ((), ("example.org",), ("*.0.0.1",), ("*",)):
        with pytest.raises(ApiError, match=r"allow-image-urls|private network"):
            fetched(url, *hosts)
    with pytest.raises(ApiError, match="private network"):
        fetched(f"{files}/away", "127.0.0.1", "localhost")
    monkeypatch.setattr(request_images, "MAX_BYTES", 4000)
    with pytest.raises(ApiError, match="has more"):
        fetched(f"{files}/long", "127.0.0.1")
    monkeypatch.setattr(request_images, "FETCH_S", -1.0)
    with pytest.raises(ApiError, match="host is late") as late:
        fetched(url, "127.0.0.1")
    assert (late.value.status, late.value.headers()["retry-after"]) == (503, "5")
    monkeypatch.setattr(socket, "getaddrinfo", name_server_is_away)
    with pytest.raises(ApiError, match="host is late"):
        fetched(url, "127.0.0.1")
    monkeypatch.undo()
    with pytest.raises(ApiError, match="can be fetched, but got ConnectionRefusedError"):
        fetched("http://127.0.0.1:1/a.png", "127.0.0.1")


def test_a_host_that_sends_a_byte_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its bytes comes in time, but the headers never end."""
    monkeypatch.setattr(request_images, "FETCH_S", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.01):
                    connection.sendall(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with pytest.raises(ApiError, match="host is late"):
                fetched(f"http://127.0.0.1:{listener.getsockname()[1]}/", "127.0.0.1")
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:4700::1", True), ("10.0.0.1", False),
        ("169.254.169.254", False), ("::1", False), ("::ffff:127.0.0.1", False),
        ("fe80::1%eth0", False), ("0.0.0.0", False), ("100.64.0.1", False), ("224.0.0.1", False),
        ("fd00::1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert request_images._is_public(address) is public
