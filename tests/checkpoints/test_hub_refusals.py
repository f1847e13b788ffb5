"""Refusals by the Hub, Sterna's refusals of its answers, and work without a network."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import command, failed, failure
from hub_helpers import (
    NANO,
    NEEDED,
    REPO,
    TOKEN,
    WEIGHTS,
    pull,
)
from hub_server import LFS_BYTES, Hub, listing, serving
from huggingface_hub import constants

from sterna import LLM
from sterna.checkpoints import hub
from sterna.checkpoints.hub import HubName, pulling, store, transfer
from sterna.checkpoints.hub import listing as listings
from sterna.checkpoints.hub.choose import choose
from sterna.checkpoints.hub.failures import hub_errors
from sterna.checkpoints.hub_names import is_plain_path
from sterna.checkpoints.resolve import resolve
from sterna.errors import (
    HubError,
    ModelFormatError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)

# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("where", "status", "code", "kind", "words"),
    [
        ("api", 401, "RepoNotFound", RequestError, ("none of this name", "hf auth login")),
        ("api", 401, "", HubError, ("refuses access", "hf auth login")),
        ("api", 403, "GatedRepo", HubError, ("gated", "licence", f"/{REPO}", "HF_TOKEN")),
        (WEIGHTS, 401, "GatedRepo", HubError, ("gated", "licence", "hf auth login")),
        (WEIGHTS, 403, "GatedRepo", HubError, ("gated", "licence")),
        (WEIGHTS, 403, "", HubError, ("refuses access", "403", "licence")),
        (WEIGHTS, 404, "EntryNotFound", RequestError, ("404",)),
        ("api", 404, "RevisionNotFound", RequestError, ("branch, a tag or a commit",)),
        ("api", 429, "", HubError, ("429", "wait")),
        ("api", 400, "", HubError, ("400",)),
    ],
)
def test_refusals_say_what_to_do(
    server: Hub, where: str, status: int, code: str, kind: type[HubError], words: tuple[str, ...]
) -> None:
    server.status[where] = (status, code)
    message = failure(pull, kind, REPO, *words)
    assert TOKEN not in message
    assert not hub.downloads()


def test_a_busy_server_is_asked_again(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.status[WEIGHTS] = (503, "")
    failure(pull, HubError, "503", "later")
    assert len(server.fetched(WEIGHTS)) == transfer.RETRIES + 1


def test_no_such_model_or_revision(server: Hub) -> None:
    failure(lambda: pull("terns/none"), RequestError, "terns/none", "spelling")
    failure(lambda: pull(f"{REPO}@none"), RequestError, "'none'", "branch")


def test_no_network(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:secret@127.0.0.1:9")
    message = failure(pull, HubError, "127.0.0.1:9", "reachable", "refused", "HF_ENDPOINT")
    assert "secret" not in message
    failure(lambda: resolve("terns/none"), HubError, "no", "folder or file terns/none here")
    message = failure(lambda: resolve("hf://terns/none"), HubError, "reachable")
    assert "here" not in message


def test_a_path_with_a_mistake(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = failure(lambda: resolve("models/none"), RequestError, "none of this name")
    assert "nor is" not in message
    (tmp_path / "models").mkdir()
    failure(lambda: resolve("models/none"), RequestError, "spelling", "folder or file models/none")


@pytest.mark.parametrize(
    "body", [b"<html>log in</html>", b"[]", b"{}", b'{"id": "a/b", "sha": "../../x"}']
)
def test_an_answer_that_is_no_hubs(server: Hub, body: bytes) -> None:
    server.api_body = body
    failure(pull, HubError, "as a Hub does")


def test_a_listing_cannot_leave_the_cache(server: Hub, tmp_path: Path) -> None:
    names = ("../../evil.gguf", "/evil.gguf", "a/../evil.gguf", "..\\evil.gguf", "-rf.gguf")
    server.extra = [{"rfilename": n, "size": 1, "blobId": "0" * 40} for n in names]
    server.add("terns/evil", {"README.md": b""})
    failure(lambda: pull("terns/evil"), ModelFormatError, "without weights")
    server.extra = [{"rfilename": "a.gguf", "size": 1, "blobId": "../../../evil"}]
    failure(lambda: pull("terns/evil"), HubError)
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name and path.is_file()]


def test_mutated_listings_are_refused_or_read(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded; STERNA_FUZZ sets the count."""
    files = {"config.json": b"{}", WEIGHTS: b"x" * (LFS_BYTES + 1), "a.gguf": b"g"}
    whole = listing(REPO, "0" * 40, files)
    rng, refused, count = random.Random(5), 0, int(os.environ.get("STERNA_FUZZ", "500"))
    words = [b"null", b"-1", b"1e999", b"[]", b"{}", b'"../x"', b"9" * 400, b"\0", b"", b"[" * 2000]
    values = list(re.finditer(rb'(?<=: )("[^"]*"|\d+|\{[^{}]*\})', whole))
    body = whole

    monkeypatch.setattr(listings, "answer", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(listings, "body", lambda _: body)
    for _ in range(count):
        start = end = rng.randrange(len(whole))
        if rng.random() < 0.5:
            end += rng.randrange(30)
        else:
            start, end = rng.choice(values).span()
        body = whole[:start] + rng.choice(words) + whole[end:]
        try:
            with hub_errors(HubName(REPO)):
                damaged = listings.listing_of(HubName(REPO))
            sizes = {path: file.size for path, file in damaged.files.items()}
            assert all(is_plain_path(path) and size >= 0 for path, size in sizes.items())
            choose(HubName(REPO), sizes)
        except SternaError:
            refused += 1
    assert 0 < refused <= count


def test_pickled_weights_are_refused_before_a_download(server: Hub) -> None:
    server.add("terns/pickle", {"config.json": b"{}", "pytorch_model.bin": b"x" * 100})
    failure(lambda: pull("terns/pickle"), ModelFormatError, "pytorch_model.bin", "any code")
    server.add("terns/adapter", {"config.json": b"{}", "adapter_model.safetensors": b"x"})
    failure(lambda: pull("terns/adapter"), ModelFormatError, "adapter")
    server.add("terns/bare", {WEIGHTS: b"x"})
    failure(lambda: pull("terns/bare"), ModelFormatError, "config.json")
    assert len(server.requests) == 3  # the listings, no file


def test_what_cannot_run_is_refused_before_its_weights(server: Hub) -> None:
    server.add("terns/other", {**NANO, "config.json": b'{"architectures": ["OtherLM"]}'})
    failure(lambda: LLM("terns/other"), UnsupportedModelError, "OtherLM")
    failed(command("pull", "terns/other"), "OtherLM")
    failed(command("generate", "--model", "terns/other", "x"), "OtherLM")
    assert not server.fetched(WEIGHTS)


def test_the_disk_is_asked_first(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pulling.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9)
    )
    failure(pull, HubError, "free", "sterna rm", "HF_HOME")
    assert len(server.requests) == 1


def test_a_disk_that_fills_up(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    failure(pull, HubError, "full", "sterna rm")
    assert not hub.downloads()


def test_the_token_goes_to_the_hub_alone(
    server: Hub, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Large files lie elsewhere; a redirection to another host must not carry the token."""
    with serving(Hub(repos=server.repos)) as elsewhere, caplog.at_level(logging.DEBUG):
        server.redirect = elsewhere.url.replace("127.0.0.1", "localhost")
        pull()
    assert {r.token for r in server.requests} == {f"Bearer {TOKEN}"}
    assert {r.token for r in elsewhere.requests} == {None}
    assert len(elsewhere.requests) == len(NEEDED)
    out, err = capfd.readouterr()
    assert TOKEN not in out + err + caplog.text
    assert out + err == ""  # and no progress bar where there is no terminal


# --------------------------------------------------------------------------------------- offline


def test_offline(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    failure(lambda: resolve(REPO, offline=True), HubError, "offline", f"sterna pull {REPO}")
    pull()
    server.requests.clear()
    path = resolve(REPO, offline=True)
    assert (path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert pull(offline_only=True).path == path
    message = failure(lambda: pull(f"{REPO}@v9", offline_only=True), HubError, "offline")
    assert f"of this repository there is {REPO})" in message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pull().path == path
    failure(lambda: resolve("terns/other"), HubError, "offline")
    assert not server.requests


def test_offline_what_other_tools_fetched(
    server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = pull().commit
    shutil.rmtree(store.Repository(REPO).records)
    for text in (REPO, f"{REPO}@{commit}", f"{REPO}@{commit[:9]}"):
        assert resolve(text, offline=True).name == commit
        assert hub.find(HubName.parse(text)) is not None  # recorded
        shutil.rmtree(store.Repository(REPO).records)
    failure(lambda: resolve(f"{REPO}@v2", offline=True), HubError, "offline")
    blob = (store.Repository(REPO).snapshot(commit) / WEIGHTS).resolve()
    blob.write_bytes(b"\0" + NANO[WEIGHTS][1:])
    failure(lambda: resolve(REPO, offline=True), ModelFormatError, "SHA-256")
    blob.unlink()
    failure(lambda: resolve(REPO, offline=True), ModelFormatError, WEIGHTS)


def test_a_download_that_lost_a_file_is_none(server: Hub) -> None:
    (pull().path / "config.json").unlink()
    assert hub.find(HubName(REPO)) is None
    assert (resolve(REPO) / "config.json").exists()
    assert server.fetched(WEIGHTS) == [None]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(version=2),
        lambda r: r.update(commit="../../../../etc"),
        lambda r: r.update(repo="other/name"),
        lambda r: r.update(revision="../x"),
        lambda r: r["files"][0].update(path="../../x"),
        lambda r: r["files"][0].update(digest="../x"),
        lambda r: r["files"][0].update(size="many"),
        lambda r: r.pop("files"),
        lambda r: r.update(files=5),
    ],
)
def test_a_damaged_record_is_none(server: Hub, change: Callable[[dict[str, object]], None]) -> None:
    record = pull().record
    value = json.loads(record.read_bytes())
    change(value)
    record.write_text(json.dumps(value))
    assert not hub.downloads()
    assert pull().is_whole()
