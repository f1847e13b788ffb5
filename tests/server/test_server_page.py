"""The web page as it is served: one file, its policy, its reader of PDFs; what it asks for."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from server_process import ServerProcess, serving

import sterna
from sterna.server.endpoints.webui import PDF_READER
from sterna.server.json_body import decode
from sterna.server.service import Service
from sterna.server.settings import Settings

VENDOR = Path(sterna.__file__).parent / "server/webui/vendor"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("page"), "nano", "--api-key", "sesame") as running:
        yield running


def test_the_page_is_one_file(server: ServerProcess) -> None:
    """Its policy allows the scripts and the style in it, and its fonts are in the style."""
    answer = server.http.get("/")
    policy = answer.headers["content-security-policy"]
    text = answer.content.decode()
    inline = re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL)
    assert [tag for tag, _ in inline] == ["style", "script", "script"]
    for _, content in inline:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    for font in (VENDOR / "fonts").iterdir():
        assert base64.b64encode(font.read_bytes()).decode() in text
    assert not re.search(r"url\((?!data:)", inline[0][1])


def test_a_browser_keeps_the_page(server: ServerProcess) -> None:
    for path in ("/", *PDF_READER):
        answer = server.http.get(path)
        assert answer.status_code == 200
        tag = {"if-none-match": answer.headers["etag"]}
        again = server.http.get(path, headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"]
        assert server.http.get(path, headers={"if-none-match": '"older"'}).status_code == 200


def test_the_reader_of_pdfs_loads_nothing_else(server: ServerProcess) -> None:
    for path in PDF_READER:
        headers = server.http.get(path).headers
        assert headers["content-type"] == "text/javascript; charset=utf-8"
        assert headers["content-security-policy"] == "default-src 'none'; script-src 'self'"


def test_without_the_page(tmp_path: Path) -> None:
    with serving(tmp_path, "nano", "--no-page") as server:
        assert {server.http.get(path).status_code for path in ("/", *PDF_READER)} == {404}
        assert not {"/", *PDF_READER} & {*server.http.get("/openapi.json").json()["paths"]}


@pytest.mark.parametrize("n", [1, 2])
def test_streamed_completions_have_the_ids_of_their_prompt(server: ServerProcess, n: int) -> None:
    """Once for each choice, as the whole answer has them."""
    asked = {"prompt": "import os", "max_tokens": 3, "n": n, "seed": 1, "return_token_ids": True}
    headers = {"authorization": "Bearer sesame"}
    whole = server.http.post("/v1/completions", json=asked, headers=headers).json()
    answer = server.http.post("/v1/completions", json={**asked, "stream": True}, headers=headers)
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [decode(one.encode(), dict[str, Any])["choices"][0] for one in data]
    for i, choice in enumerate(whole["choices"]):
        own = [chunk for chunk in chunks if chunk["index"] == i]
        prompts = [chunk["prompt_token_ids"] for chunk in own if "prompt_token_ids" in chunk]
        assert prompts == [choice["prompt_token_ids"]]
        assert [id for chunk in own for id in chunk.get("token_ids", [])] == choice["token_ids"]


@pytest.mark.parametrize(
    ("given", "sees", "context", "most"),
    [
        (None, False, 8192, 1 << 20),
        (None, False, 1 << 20, 16 << 20),
        (None, True, 8192, 32 << 20),
        (65536, True, 1 << 20, 65536),
    ],
)
def test_bytes_of_a_body(given: int | None, sees: bool, context: int, most: int) -> None:
    """Enough for a text that fills the context, unless a setting says otherwise."""
    models: Any = SimpleNamespace(sees=sees, longest_context=context)
    service = SimpleNamespace(settings=Settings(max_body=given), models=models)
    assert Service.max_body.fget(service) == most  # type: ignore[attr-defined]
