"""A request sets the scale of each adapter: its answer has the same bits alone and in a batch, and
no cached prefix of other scales."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adapter_folders
import numpy as np
import pytest
from adapter_folders import added, parts_of
from helpers import failure
from server_process import ServerProcess, serving

from sterna import LLM
from sterna.engine import Adapter, Engine
from sterna.errors import RequestError
from sterna.llm import adapters, receipt
from sterna.llm.async_llm import AsyncLLM

TOKENS = np.random.default_rng(3).integers(3, 250, 70).tolist()
ASKED: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "seed": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> LLM:
    llm, root = LLM(checkpoint("bitnet-multiply"), threads=2), tmp_path_factory.mktemp("adapters")
    parts = parts_of(llm.engine.model)
    for name, several, rank in (("a", parts, 4), ("b", parts[1::2], 3)):
        folder = adapter_folders.write(root / name, several, seed=rank, r=rank, size=1.5)
        llm.load_adapter(name, folder)
    return llm


def test_a_scale_is_that_of_the_file(llm: LLM, tmp_path: Path) -> None:
    """Half of an adapter has the bits of one of half its alpha; scale 1 is the adapter itself."""
    parts = parts_of(llm.engine.model)
    half = adapter_folders.write(tmp_path / "half", parts, seed=4, size=1.5, lora_alpha=4)
    llm.load_adapter("half", half)
    for one, other in (({"a": 0.5}, "half"), ({"a": 1.0}, "a"), ({"a": 0.0, "b": 0}, "__base__")):
        got, expected = (llm.logits(TOKENS, adapter=choice) for choice in (one, other))
        assert got.tobytes() == expected.tobytes()
    assert llm.logits(TOKENS, adapter={"a": -1.5}).tobytes() != expected.tobytes()
    llm.unload_adapter("half")
    prints = [receipt.fingerprint(llm, one) for one in (None, "a", {"a": 1.0}, {"a": 0.5})]
    assert len(set(prints)) == 3


def test_a_sum_is_of_all(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Several add up, in every layer that any of them has."""
    llm = LLM(checkpoint("llama-bias"), format="f32", head="f32", threads=1, kv_dtype="f32")
    model = llm.engine.model
    parts, scales = parts_of(model), {"a": 0.75, "b": -0.5}
    folders = {
        name: adapter_folders.write(tmp_path / name, parts[i:], seed=i, r=3 + i)
        for i, name in enumerate(scales)
    }
    both = Adapter.mixed(
        [(Adapter.open(folders[name], model), scale) for name, scale in scales.items()], model
    )
    whole = {}
    for name, scale in scales.items():
        for layer, delta in added(folders[name]).items():
            whole[layer] = whole.get(layer, 0) + scale * delta
    joint: dict[str, Any] = {}
    for part in parts:
        left, sizes, right = np.linalg.svd(whole[f"{part.name}.weight"].astype(np.float64))
        joint[f"base_model.model.{part.name}.lora_A.weight"] = right[:7].astype(np.float32)
        up = (left[:, :7] * sizes[:7]).astype(np.float32)
        joint[f"base_model.model.{part.name}.lora_B.weight"] = up
    merged = adapter_folders.write(tmp_path / "m", [], r=7, lora_alpha=7, extra=joint)
    engine = Engine(model, threads=1, kv_dtype="f32")
    (got,), (expected,), (plain,) = (
        engine.logits([TOKENS], adapter=one) for one in (both, Adapter.open(merged, model), None)
    )
    assert np.abs(got - expected).max() < 1e-3 * np.abs(expected - plain).max()


def test_beside_others(llm: LLM) -> None:
    """Each answer of a shared step is the answer alone; and a drawn one, too."""
    choices: list[Any] = [{"a": 0.5}, {"a": 0.25}, None, "a", {"a": 0.5, "b": 2.0}, {"a": 0.5}]
    alone = [llm.generate(TOKENS, adapter=one, **ASKED).tokens for one in choices]
    assert len({tuple(tokens) for tokens in alone}) == 5

    async def together() -> list[list[int]]:
        async with AsyncLLM(llm) as engine:
            streams = [engine.submit(TOKENS, adapter=one, **ASKED) for one in choices]
            return [(await stream.result())[0].tokens for stream in streams]

    assert asyncio.run(together()) == alone


def test_prefixes_are_of_one_scale(llm: LLM) -> None:
    """What is cached with one scale is not taken for another; scale 1 is the adapter by name."""
    tokens = TOKENS[::-1]
    cached = []
    choices: list[Any] = [{"a": 0.5}, {"a": 0.25}, {"a": 0.5}, {"b": 0.5}, "a", {"a": 1.0}, None]
    for choice in choices:
        cached.append(llm.generate(tokens, adapter=choice, **ASKED).stats.n_cached > 0)
    assert cached == [False, False, True, False, False, True, False]


def test_what_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unknown names, scales that are none, too many at a time, and files that have changed."""
    failure(lambda: llm.generate("a", adapter={"x": 1}), RequestError, "adapter", "'x'")
    for scale in (float("nan"), 1e9, "1", True, None):
        failure(lambda scale=scale: llm.generate("a", adapter={"a": scale}), RequestError, "scale")
    monkeypatch.setattr(adapters, "MOST_MIXED", 3)
    own = llm.adapters
    own._kept.clear()
    held = [own.chosen({"a": scale}) for scale in (0.1, 0.2, 0.3)]
    failure(lambda: own.chosen({"a": 0.4}), RequestError, "at most 3", "try again")
    assert own.chosen({"a": 0.2}) is held[1]
    held.clear()
    assert own.chosen({"a": 0.4}) is not None
    parts = parts_of(llm.engine.model)
    folder = adapter_folders.write(tmp_path / "c", parts, seed=1)
    llm.load_adapter("c", folder)
    adapter_folders.write(tmp_path / "d", parts, seed=2)
    (tmp_path / "d" / "adapter_model.safetensors").replace(folder / "adapter_model.safetensors")
    failure(lambda: own.chosen({"c": 0.5}), RequestError, "changed", "load it again")
    llm.unload_adapter("c")


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, list[str]]:
    """The built-in model with two adapters, and the options that serve it."""
    llm, root = LLM("nano", threads=1, prefix_cache=False), tmp_path_factory.mktemp("nano")
    options = ["nano"]
    for i, name in enumerate(("poet", "brief")):
        parts = parts_of(llm.engine.model)[i : i + 3]
        folder = adapter_folders.write(root / name, parts, seed=i, size=2.0)
        llm.load_adapter(name, folder)
        options += ["--adapter", str(folder)]
    return llm, options


@pytest.fixture(scope="module")
def server(
    nano: tuple[LLM, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    keys = {"STERNA_API_KEY": "one two"}
    with serving(tmp_path_factory.mktemp("log"), *nano[1], **keys) as running:
        running.http.headers["authorization"] = "Bearer one"
        yield running


def test_requests_of_llama_cpp(server: ServerProcess, nano: tuple[LLM, list[str]]) -> None:
    """Scales of a request, of all requests of a key, and an adapter by its name as a model."""
    llm, prompt = nano[0], "def read_lines(path):\n"
    asked = {"max_tokens": 8, "temperature": 0}

    def text(path: str = "/v1/completions", **fields: object) -> str:
        answer = server.post(path, prompt=prompt, **asked, **fields).json()
        found: str = answer["content"] if path == "/completion" else answer["choices"][0]["text"]
        return found

    def expected(adapter: Any) -> str:
        return llm.generate(prompt, adapter=adapter, **asked).text

    rows = server.http.get("/lora-adapters").json()
    assert [(row["id"], row["path"], row["scale"]) for row in rows] == [
        (0, "poet", 0.0), (1, "brief", 0.0),
    ]  # fmt: skip
    plain = text()
    assert plain == expected(None)
    half = [{"id": 0, "scale": 0.5}]
    both = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 1.5}]
    for path in ("/v1/completions", "/completion"):
        assert text(path, lora=half) == expected({"poet": 0.5}) != plain
        assert text(path, lora=both) == expected({"poet": 0.5, "brief": 1.5})
        assert text(path, lora=[]) == plain
    assert text(model="poet", lora=[]) == plain
    assert server.http.post("/lora-adapters", json=half).json() == {"success": True}
    assert [row["scale"] for row in server.http.get("/lora-adapters").json()] == [0.5, 0.0]
    assert text() == text("/completion") == expected({"poet": 0.5})
    assert text(lora=[]) == plain
    assert text(model="brief") == expected("brief")
    said = {"messages": [{"role": "user", "content": prompt}], **asked}
    chat = server.post("/v1/chat/completions", **said).json()["choices"][0]["message"]["content"]
    assert chat == llm.chat(said["messages"], adapter={"poet": 0.5}, **asked).text
    server.http.headers["authorization"] = "Bearer two"
    assert text() == plain  # another key has scales of its own
    server.http.headers["authorization"] = "Bearer one"
    for wrong in (5, [{"id": 2, "scale": 1}], [{"id": 0, "scale": 1e9}], [{"id": 0}], [{"x": 1}]):
        assert server.http.post("/lora-adapters", json=wrong).status_code == 400
        answer = server.post("/completion", prompt="a", lora=wrong)
        assert answer.status_code == 400, wrong
    assert server.http.post("/lora-adapters", json=[]).json() == {"success": True}
    assert text() == plain
