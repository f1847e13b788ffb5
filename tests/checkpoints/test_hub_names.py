"""Names of models: a path, a built-in name or a name on the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import failure

from sterna.checkpoints import hub
from sterna.checkpoints.hub import HubName
from sterna.checkpoints.resolve import BUILT_IN, resolve
from sterna.errors import HubError, RequestError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", HubName("a/b")),
        ("microsoft/bitnet-b1.58-2B-4T", HubName("microsoft/bitnet-b1.58-2B-4T")),
        ("a/b@v1", HubName("a/b", "v1")),
        ("a/b@refs/pr/1", HubName("a/b", "refs/pr/1")),
        ("a/b:Q4_K_M", HubName("a/b", "main", "Q4_K_M")),
        ("a/b@v1:sub/c d.gguf", HubName("a/b", "v1", "sub/c d.gguf")),
        ("hf://a/b@v1:q", HubName("a/b", "v1", "q")),
        ("bitnet-2b", HubName("microsoft/bitnet-b1.58-2B-4T")),
        ("falcon-edge-3b-instruct", HubName("tiiuae/Falcon-E-3B-Instruct")),
    ],
)
def test_names(text: str, name: HubName) -> None:
    assert hub.looks_like_name(text)
    assert HubName.parse(text) == name
    assert HubName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "a", "a/", "/b", "a/b/c", "../b", "a/..", "./a", "-a/b", "a/-b", "--help/x", "a/b--c",
        "a/b.git", "a b/c", "a/b@", "a/b@-x", "a/b@../x", "a/b@x/../../y", "a/b@x.lock", "a/b:",
        "a/b:../x.gguf", "a/b:/x.gguf", "a/b:-x", "a/b:x\\y", "a/b:x\ny", "a/b\x00", "ä/b", "a//b",
        "https://huggingface.co/a/b", "hf://", "hf://a", "a/" + "b" * 96, "a/b:" + "c" * 600,
        "a/.b", "a/b@x\n", "a/b:x/./y", "a/b:x//y", "a/b@x:y*",
    ],
)  # fmt: skip
def test_malformed_names(text: str) -> None:
    failure(lambda: HubName.parse(text), RequestError, "org/name")


@pytest.mark.parametrize(
    "text",
    ["./a/b", "../a/b", "/a/b", "~/a", "a/b/", "a/b.gguf", "a/b/c", "x.gguf", "a\\b", "C:/a/b"],
)
def test_paths_are_never_fetched(text: str) -> None:
    """The network is not asked: that would be another error."""
    assert not hub.looks_like_name(text)
    failure(lambda: resolve(text), RequestError, "path that does not exist")


def test_what_a_name_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("nano") == BUILT_IN["nano"]
    Path("nano").mkdir()
    assert resolve("nano") == BUILT_IN["nano"]  # a folder of that name without a model
    Path("nano/config.json").touch()
    assert resolve("nano") == Path("nano")
    Path("org/name").mkdir(parents=True)
    failure(lambda: resolve("org/name"), RequestError, "no config.json", "hf://org/name")
    Path("org/name/config.json").touch()
    assert resolve("org/name") == Path("org/name")
    Path("x.gguf").touch()
    assert resolve("x.gguf") == Path("x.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/x.gguf") == tmp_path / "x.gguf"
    assert resolve(tmp_path) == tmp_path / "x.gguf"  # the one model in it
    assert resolve(tmp_path / "nano") == tmp_path / "nano"
    failure(lambda: resolve("hf://org/name"), HubError, "offline")  # as conftest.py asks for


def test_messages_help() -> None:
    failure(lambda: resolve("nanoo"), RequestError, "nanoo", "nano", "org/name")
    failure(lambda: resolve("org/name/x.gguf"), RequestError, "org/name:file.gguf")
    failure(lambda: resolve(Path("org/name")), RequestError, "does not exist")
    failure(lambda: resolve("https://huggingface.co/a/b"), RequestError, "org/name")
    for nothing in ("", None, 5):
        failure(lambda nothing=nothing: resolve(nothing), RequestError, "model")
    failure(lambda: resolve("a" * 5000), RequestError, "does not exist")
    failure(lambda: resolve("a\0b"), RequestError, "does not exist")


def test_a_missing_model_offline_names_both_ways() -> None:
    failure(lambda: resolve("out/model"), HubError, "out/model", "sterna pull")
