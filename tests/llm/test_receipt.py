"""Receipts are equal for equal inputs, and differ for each part that changes bits."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from datetime import datetime
from pathlib import Path

from helpers import failure

import sterna
from sterna import LLM
from sterna.chat.clock import clock
from sterna.errors import RequestError
from sterna.llm import receipt
from sterna.server import replay


def test_fingerprint(tmp_path: Path) -> None:
    """It depends on weights, head, KV type, context, tokenizer and template, not on threads."""
    nano = receipt.fingerprint(LLM("nano", threads=1))
    assert nano == receipt.fingerprint(LLM("nano", threads=2, isa="scalar"))
    others = [LLM("nano", head="int8"), LLM("nano", kv_dtype="f32"), LLM("nano", context=100)]
    for name, change in (
        ("tokenizer_config.json", {"add_bos_token": True}),
        ("chat_template.jinja", None),
    ):
        folder = tmp_path / name
        shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder)
        file = folder / name
        text = file.read_text()
        file.write_text(json.dumps({**json.loads(text), **change}) if change else text + " ")
        others.append(LLM(folder))
    seen = {nano, *map(receipt.fingerprint, others)}
    assert len(seen) == 6


def test_digest() -> None:
    """Of lengths and ids: where one sequence ends is part of it."""
    data = b"".join(n.to_bytes(4, "little") for n in (2, 1, 700, 1, 3))
    assert receipt.digest([[1, 700], [3]]) == hashlib.sha256(data).hexdigest()
    assert receipt.digest([[1], [700, 3]]) != receipt.digest([[1, 700], [3]])


def test_spelling() -> None:
    """The bytes of tokens in the middle of a text, joined, are the text."""
    tokenizer = LLM("nano").tokenizer
    text = "def f(x):\n    return 'é €'"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, False))) == text.encode()
    assert tokenizer.token_id("<|end|>") == tokenizer.eos_ids[0]
    assert tokenizer.token_bytes(tokenizer.eos_ids[0]) == b"<|end|>"
    assert tokenizer.token_id("<|none|>") is None


def test_a_template_that_knows_the_time(tmp_path: Path) -> None:
    """The receipt has the moment that the template was told; the answer is checked at that one."""
    folder = tmp_path / "model"
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder)
    file = folder / "chat_template.jinja"
    file.write_text("{{ strftime_now('%d %b %Y %H:%M:%S') }}" + file.read_text())
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 1}

    def opener() -> LLM:
        return LLM(folder, threads=1)

    with clock(datetime(2026, 1, 2, 3, 4, 5)):
        answer = asyncio.run(replay._again(opener, "/v1/chat/completions", body))
    assert answer["receipt"]["rendered_at"] == "2026-01-02T03:04:05"
    assert replay.differences(opener, body, answer) == []
    answer["receipt"]["rendered_at"] = "2026-01-02T03:04:06"
    assert replay.differences(opener, body, answer)[0].startswith("prompt_sha256")
    answer["receipt"]["rendered_at"] = "yesterday"
    failure(lambda: replay.differences(opener, body, answer), RequestError, "rendered_at", "8601")


def test_a_template_without_the_time() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
    answer = asyncio.run(replay._again(lambda: LLM("nano"), "/v1/chat/completions", body))
    assert "rendered_at" not in answer["receipt"]
