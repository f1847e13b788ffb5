"""Prefix packs: what was computed once, in a file, gives the same bits without computing it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, failed, failure
from server_process import serving

from sterna import LLM, RequestError, _native
from sterna.llm.prefix_packs import make_pack

TEXT = "Be brief. " + " ".join(f"Rule {i} is {i * i}." for i in range(60))
OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "logprobs": 1}
CHAT = [{"role": "system", "content": TEXT}, {"role": "user", "content": "Which rule is 9?"}]


def packed(model: str | Path, folder: Path, kind: str, text: str = TEXT, **options: Any) -> Path:
    path = folder / f"{kind}.pack"
    make_pack(LLM(model, cache_disk=folder / "pages", threads=1, **options), text, kind, path)
    return path


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed("nano", tmp_path_factory.mktemp("pack"), "system")


def assert_same(done: Any, expected: Any) -> None:
    assert done.tokens == expected.tokens
    assert [one.logprob for one in done.logprobs] == [one.logprob for one in expected.logprobs]


@pytest.mark.parametrize("isa", _native.isas())
def test_every_unit_reads_a_pack(isa: str, pack: Path) -> None:
    """Whatever unit made it."""
    done = LLM("nano", prefix=pack, isa=isa, threads=2).chat(CHAT, **OPTIONS)
    assert done.stats.n_cached >= 64
    assert_same(done, LLM("nano", threads=1).chat(CHAT, **OPTIONS))


@pytest.mark.parametrize(
    "name", ["bitnet-multiply", "gemma3", "lfm2", "qwen3.5", "deepseek-v3", "granite-hybrid"]
)
def test_families(name: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Windows, latent attention, and recurrent states, which have a snapshot at the end."""
    model = checkpoint(name)
    text = TEXT[:300]
    made = packed(model, tmp_path, "text", text)
    ids = LLM(model, threads=1).tokenizer.encode(text + " And so?")
    done = LLM(model, prefix=made, threads=1).generate(ids, **OPTIONS)
    assert done.stats.n_cached >= 64
    assert_same(done, LLM(model, threads=1, prefix_cache=False).generate(ids, **OPTIONS))


def test_a_pack_has_the_same_bytes(pack: Path, tmp_path: Path) -> None:
    assert packed("nano", tmp_path, "system").read_bytes() == pack.read_bytes()


def test_other_models_are_refused(pack: Path, checkpoint: Callable[[str], Path]) -> None:
    other = checkpoint("bitnet-multiply")
    failure(lambda: LLM(other, prefix=pack), RequestError, "prefix", "is of nano")
    failure(lambda: LLM("nano", prefix=pack, kv_dtype="f32"), RequestError, "is of nano", "i16")


def test_damaged_packs(pack: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is cut short is refused; a changed page is computed again."""
    data, bad = pack.read_bytes(), tmp_path / "bad.pack"
    for part in (b"", b"not a pack", data[: len(data) // 2], data[100:]):
        bad.write_bytes(part)
        failure(lambda: LLM("nano", prefix=bad), RequestError, "prefix", "sterna prefix")
    failure(lambda: LLM("nano", prefix=tmp_path / "none"), RequestError, "prefix", "none")
    with zipfile.ZipFile(pack) as archive:
        place = archive.getinfo("pages/000001").header_offset
    bad.write_bytes(data[: place + 500] + b"x" + data[place + 501 :])
    done = LLM("nano", prefix=bad, threads=1).chat(CHAT, **OPTIONS)
    assert done.stats.n_cached == 64  # the page before it
    assert "is damaged" in caplog.text
    assert_same(done, LLM("nano", threads=1).chat(CHAT, **OPTIONS))


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"kind": "audio"}, {"text": 3}, {"root": None}, {"model": None}]
)
def test_manifests(pack: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    bad = tmp_path / "bad.pack"
    with zipfile.ZipFile(pack) as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                data = json.dumps(json.loads(data) | change).encode()
            new.writestr(name, data)
    failure(lambda: LLM("nano", prefix=bad), RequestError, "prefix")


def test_adapters_have_other_pages(pack: Path) -> None:
    """Keys and values of an adapter differ, so a pack without it is not theirs."""
    cache = LLM("nano", prefix=pack, threads=1).prefix_cache
    assert cache is not None
    tokens = np.append(cache.packs[0].tokens, 1).astype(np.int32)
    assert cache.match(tokens, "adapter:0:")[1] == 0
    assert cache.match(tokens, "another client")[1] == len(tokens) - 1


def test_what_is_too_short(tmp_path: Path) -> None:
    failure(lambda: packed("nano", tmp_path, "text", "Hello"), RequestError, "at least 64 tokens")


def test_the_command(pack: Path, tmp_path: Path) -> None:
    text, made = tmp_path / "text", tmp_path / "made.pack"
    text.write_text(TEXT + "\n")
    assert command("prefix", "nano", str(text), "-o", str(made)).exit_code == 0
    assert made.read_bytes() == pack.read_bytes()
    line = ("--temperature", "0", "--max-tokens", "8")
    answer = command("chat", "--prefix", str(made), *line, "Which rule is 9?").stdout
    assert answer == command("chat", "--system", TEXT, *line, "Which rule is 9?").stdout
    plain = tmp_path / "plain.pack"
    assert command("prefix", "nano", str(text), "-o", str(plain), "--plain").exit_code == 0
    rest = command("generate", "--prefix", str(plain), *line, " And so").stdout
    assert rest == command("generate", TEXT + " And so", *line).stdout
    text.write_bytes(b"\xff")
    failed(command("prefix", "nano", str(text), "-o", str(made)), "UTF-8", "byte 0")


def test_clients_of_a_server(pack: Path, tmp_path: Path) -> None:
    """Each key has prefixes of its own; the operator's pack is there for all of them."""
    with serving(tmp_path, "nano", "--prefix", str(pack), "--api-key", "a") as server:
        server.http.headers["authorization"] = "Bearer a"
        done = server.post("/v1/chat/completions", messages=CHAT, max_tokens=2).json()
    assert done["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
