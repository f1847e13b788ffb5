"""Models of the Hub, against a local server: fetched, resumed, checked, refused, removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest
from helpers import command, failed, failure
from hub_server import Hub, folder_files, serving
from huggingface_hub import constants

from sterna import LLM
from sterna.checkpoints import cache, hub
from sterna.checkpoints.hub import HubName, pulling, store, transfer
from sterna.checkpoints.resolve import BUILT_IN, resolve
from sterna.errors import HubError, ModelFormatError, RequestError, UnsupportedModelError

NANO = folder_files(BUILT_IN["nano"])
NEEDED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
}
WEIGHTS = "model.safetensors"
REPO = "terns/nano"
TOKEN = "hf_" + "notASecret" * 3


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub with the built-in model, an empty cache, and no waiting between attempts."""
    with serving(Hub()) as running:
        running.add(REPO, NANO)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(transfer, "RETRY_WAIT_S", 0.01)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        huggingface_hub.close_session()  # its client has read the environment
        yield running
        huggingface_hub.close_session()


def pull(text: str = REPO, **options: bool) -> store.Download:
    return hub.pull(HubName.parse(text), **options)


def files_below(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()}


def blobs(repo: str = REPO) -> list[Path]:
    return sorted((store.Repository(repo).folder / "blobs").iterdir())


# ------------------------------------------------------------------------------------- fetching


def test_a_name_of_the_hub_runs(server: Hub) -> None:
    llm = LLM(REPO, threads=1)
    assert llm.name == REPO
    texts = [m.generate("def ", max_tokens=4, seed=1).text for m in (llm, LLM("nano", threads=1))]
    assert texts[0] == texts[1]
    asked = len(server.requests)
    LLM(REPO, threads=1)
    assert len(server.requests) == asked  # what is here needs no network


def test_only_what_is_needed_is_fetched(server: Hub) -> None:
    clutter = [
        "pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "README.md",
        "model.fp32.safetensors", "vocab.json", "merges.txt", "modeling_x.py", "onnx/model.onnx",
        "nano-Q8_0.gguf", ".gitattributes", "tf_model.h5",
    ]  # fmt: skip
    server.add(REPO, {**NANO, **dict.fromkeys(clutter, b"x")})
    found = pull()
    assert files_below(found.path) == NEEDED
    assert {r.path.rpartition("/")[2] for r in server.requests[1:]} == NEEDED
    for name in NEEDED:
        assert (found.path / name).read_bytes() == NANO[name]


def test_the_cache_is_that_of_other_tools(server: Hub) -> None:
    """huggingface_hub finds the files, and its scan finds no fault."""
    found = pull()
    path = huggingface_hub.hf_hub_download(REPO, WEIGHTS, local_files_only=True)
    assert Path(path) == found.path / WEIGHTS
    scan = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    assert not scan.warnings
    (repo,) = scan.repos
    assert (repo.repo_id, {r.commit_hash for r in repo.revisions}) == (REPO, {found.commit})
    assert {r.refs for r in repo.revisions} == {frozenset({"main"})}


def test_what_other_tools_fetched_is_checked_and_used(server: Hub) -> None:
    first = pull()
    shutil.rmtree(store.Repository(REPO).records)  # as if another tool had fetched it
    server.requests.clear()
    assert pull().path == first.path
    assert len(server.requests) == 1
    shutil.rmtree(store.Repository(REPO).records)
    blob = (first.path / WEIGHTS).resolve()
    blob.write_bytes(b"\0" + NANO[WEIGHTS][1:])
    pull()
    assert blob.read_bytes() == NANO[WEIGHTS]
    assert server.fetched(WEIGHTS) == [None]


def test_recheck_finds_a_damaged_file(server: Hub) -> None:
    blob = (pull().path / WEIGHTS).resolve()
    blob.write_bytes(b"\0" + NANO[WEIGHTS][1:])
    pull()
    assert blob.read_bytes() != NANO[WEIGHTS]  # sizes agree, and hashing takes its time
    pull(recheck=True)
    assert blob.read_bytes() == NANO[WEIGHTS]


def test_shards_are_those_of_the_index(server: Hub) -> None:
    names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    index = {"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    server.add("terns/parts", {**files, **{name: name.encode() for name in names}})
    found = pull("terns/parts")
    assert files_below(found.path) == {*files, *names[:2]}
    missing = json.dumps({"weight_map": {"a": "model-00009-of-00009.safetensors"}}).encode()
    server.add("terns/parts", {**files, "model.safetensors.index.json": missing})
    failure(lambda: pull("terns/parts"), ModelFormatError, "00009", "weight_map")
    outside = json.dumps({"weight_map": {"a": "../config.json"}}).encode()
    server.add("terns/parts", {**files, "model.safetensors.index.json": outside})
    failure(lambda: pull("terns/parts"), ModelFormatError, "../config.json")


def test_without_tokenizer_json_its_parts_are_fetched(server: Hub) -> None:
    names = ("vocab.json", "merges.txt", "tokenizer.model")
    server.add("terns/old", dict.fromkeys(("config.json", WEIGHTS, *names), b"x"))
    assert {*names} < files_below(pull("terns/old").path)


def test_an_empty_file_is_a_file(server: Hub) -> None:
    server.add("terns/empty", {"config.json": b"{}", WEIGHTS: b"x", "merges.txt": b""})
    assert "merges.txt" in files_below(pull("terns/empty").path)


# ------------------------------------------------------------------------------------ revisions


def test_revisions(server: Hub) -> None:
    old = server.refs[REPO, "main"]
    new = server.add(REPO, {**NANO, "generation_config.json": b"{}"}, "v2/final")
    assert pull(f"{REPO}@v2/final").commit == new
    assert pull(f"{REPO}@{old}").commit == old
    assert pull(f"{REPO}@{old[:8]}").commit == old
    server.requests.clear()
    for text, commit in ((f"{REPO}@v2/final", new), (f"{REPO}@{new[:7]}", new)):
        assert resolve(text).name == commit
    assert not server.requests
    # the weights are the same, and exist once
    assert sum(blob.stat().st_size == len(NANO[WEIGHTS]) for blob in blobs()) == 1


def test_a_model_stays_at_its_commit_until_it_is_pulled(server: Hub) -> None:
    old = pull().commit
    new = server.add(REPO, {**NANO, "generation_config.json": b"{}"})
    assert resolve(REPO).name == old
    assert pull().commit == new
    assert resolve(REPO).name == new
    assert server.fetched(WEIGHTS) == [None]
    assert [d.name for d in hub.downloads()] == [REPO, f"{REPO}@{old}"]  # not lost, and listed


def test_pulling_again_costs_one_question(server: Hub) -> None:
    pull()
    server.requests.clear()
    pull()
    assert [r.path for r in server.requests] == [f"/api/models/{REPO}/revision/main"]


# ------------------------------------------------------------------------------------------ GGUF

GGUFS = {
    "nano-Q4_K_M.gguf": b"m",
    "nano-Q4_K_S.gguf": b"s",
    "more/nano.Q8_0.gguf": b"8",
    "BF16/nano-BF16-00001-of-00002.gguf": b"1",
    "BF16/nano-BF16-00002-of-00002.gguf": b"22",
    "mmproj-nano-F16.gguf": b"p",
}


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("Q4_K_M", "nano-Q4_K_M.gguf"),
        ("q4_k_s", "nano-Q4_K_S.gguf"),
        ("nano-Q4_K_S.gguf", "nano-Q4_K_S.gguf"),
        ("Q8_0", "more/nano.Q8_0.gguf"),
        ("more/nano.Q8_0.gguf", "more/nano.Q8_0.gguf"),
        ("BF16", "BF16/nano-BF16-00001-of-00002.gguf"),
    ],
)
def test_one_of_several_ggufs(server: Hub, word: str, path: str) -> None:
    server.add("terns/ggufs", GGUFS)
    found = resolve(f"terns/ggufs:{word}")
    assert found.read_bytes() == GGUFS[path]
    assert found.suffix == ".gguf"
    parts = sum(p.startswith("BF16") for p in files_below(hub.downloads()[0].path.parent.parent))
    assert parts == (2 if word == "BF16" else 0)
    server.requests.clear()
    assert resolve(f"terns/ggufs:{word.lower()}") == resolve(f"terns/ggufs:{path}") == found
    assert not server.requests


def test_several_ggufs_are_listed(server: Hub) -> None:
    server.add("terns/ggufs", GGUFS)
    shown = ("nano-Q4_K_M.gguf (1 bytes)", "more/nano.Q8_0.gguf", "BF16-00001-of-00002.gguf (3")
    example = "for example terns/ggufs:BF16,"
    message = failure(lambda: resolve("terns/ggufs"), RequestError, "several", example, *shown)
    assert "mmproj" not in message
    assert "-00002-of" not in message
    failure(lambda: resolve("terns/ggufs:Q4"), RequestError, "no GGUF", "Q4", *shown)
    failure(lambda: resolve(f"{REPO}:Q4_K_M"), RequestError, "has none")
    assert not hub.downloads()


def test_a_single_gguf_needs_no_word(server: Hub) -> None:
    server.add("terns/one", {"nano-Q4_K_M.gguf": b"m", "mmproj-F16.gguf": b"p", "README.md": b""})
    assert resolve("terns/one").name == "nano-Q4_K_M.gguf"
    (found,) = hub.downloads()
    assert found.name == "terns/one"
    server.add(REPO, {**NANO, "nano-Q8_0.gguf": b"8"})
    assert resolve(REPO).is_dir()  # safetensors come first, a GGUF by its word
    assert resolve(f"{REPO}:Q8_0").read_bytes() == b"8"
    assert {d.name for d in hub.downloads(REPO)} == {REPO, f"{REPO}:nano-Q8_0.gguf"}


# -------------------------------------------------------------------------- cut, damaged, resumed


def test_a_cut_connection_is_resumed(server: Hub) -> None:
    server.cuts[WEIGHTS] = [1_000_000, 500_000]
    assert (pull().path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert server.fetched(WEIGHTS) == [None, "bytes=1000000-", "bytes=1500000-"]


def test_another_process_goes_on_where_one_stopped(server: Hub) -> None:
    server.cuts[WEIGHTS] = [1_000_000] + [0] * 20
    failure(pull, HubError, WEIGHTS, "goes on where it stopped")
    assert not hub.downloads()
    assert hub.partial_bytes(REPO) == 1_000_000
    server.cuts.clear()
    server.requests.clear()
    assert (pull().path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert server.fetched(WEIGHTS) == ["bytes=1000000-"]
    assert hub.partial_bytes(REPO) == 0


def test_a_server_without_ranges_sends_all_again(server: Hub) -> None:
    server.ranges = False
    server.cuts[WEIGHTS] = [1_000_000]
    assert (pull().path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert server.fetched(WEIGHTS) == [None, "bytes=1000000-"]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_a_damaged_file_is_refused_and_removed(server: Hub, name: str) -> None:
    server.damaged.add(name)
    kind = "SHA-256" if name == WEIGHTS else "git SHA-1"
    failure(pull, ModelFormatError, name, kind, "pull again")
    assert not hub.downloads()
    bad = NANO[name][:-1] + bytes([NANO[name][-1] ^ 1])
    assert all(blob.read_bytes() != bad for blob in blobs())
    server.damaged.clear()
    assert (pull().path / name).read_bytes() == NANO[name]


def test_a_damaged_beginning_is_thrown_away(server: Hub) -> None:
    """A power cut may leave zeros where bytes should be: the whole file comes once more."""
    server.cuts[WEIGHTS] = [1_000_000] + [0] * 20
    failure(pull, HubError)
    server.cuts.clear()
    (partial,) = (blob for blob in blobs() if blob.name.endswith(store.PARTIAL))
    partial.write_bytes(bytes(1_000_000))
    server.requests.clear()
    assert (pull().path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert server.fetched(WEIGHTS) == ["bytes=1000000-", None]
    partial.write_bytes(bytes(len(NANO[WEIGHTS]) + 5))  # longer than the file can be
    (hub.downloads()[0].path / WEIGHTS).resolve().unlink()
    assert (pull().path / WEIGHTS).read_bytes() == NANO[WEIGHTS]


def test_more_bytes_than_announced_are_refused(server: Hub) -> None:
    server.longer.add(WEIGHTS)
    failure(pull, ModelFormatError, WEIGHTS, "size")
    assert not hub.downloads()


def test_two_pulls_at_once_fetch_each_file_once(server: Hub) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: pull(), range(4)))
    assert len({d.path for d in found}) == 1
    assert server.fetched(WEIGHTS) == [None]
    assert (found[0].path / WEIGHTS).read_bytes() == NANO[WEIGHTS]


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


# ---------------------------------------------------------------------------------- command line


def test_pull_models_rm(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "packed"))
    done = command("pull", REPO)
    assert done.stdout == f"{hub.downloads()[0].path}\n"
    (row,) = json.loads(command("pull", "--json", REPO).stdout)
    assert (row["model"], row["commit"]) == (REPO, server.refs[REPO, "main"])
    assert row["size_bytes"] == sum(len(NANO[name]) for name in NEEDED)
    key = cache.cache_key(resolve(REPO), "i2", None)
    cache.store_behind(key, lambda dst: _entry(dst)).wait()
    rows = {row["source"]: row for row in json.loads(command("models", "--json").stdout)}
    assert rows["hub"]["model"] == REPO
    assert rows["hub"]["architecture"] == "BitNetForCausalLM"
    assert rows["hub"]["size_bytes"] == row["size_bytes"]
    assert rows["hub"]["last_used"].startswith("20")
    assert rows["cache"]["packed_from"] == REPO
    shown = command("models").stdout
    assert f"{REPO}  hub" in shown
    assert row["commit"][:12] in shown
    assert rows["cache"]["path"] in shown  # whole, to be copied
    failed(command("rm", REPO), "--yes")
    done = command("rm", "--yes", "--json", REPO)
    freed = row["size_bytes"] + rows["cache"]["size_bytes"]
    assert json.loads(done.stdout) == [{"model": REPO, "freed_bytes": freed}]
    assert not store.Repository(REPO).folder.exists()
    assert not cache.entries()
    failed(command("rm", "-y", REPO), "not downloaded")


def _entry(folder: Path) -> None:
    for name in ("config.json", WEIGHTS):
        (folder / name).write_bytes(NANO[name])


def test_rm_asks_on_a_terminal(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    monkeypatch.setattr("sterna.cli.rm._has_terminal", lambda: True)
    from click.testing import CliRunner

    from sterna.cli import main

    for answer, code in (("n\n", 130), ("y\n", 0)):
        result = CliRunner().invoke(main, ["rm", REPO], input=answer)
        assert result.exit_code == code
        assert f"{REPO} (3.6 MB)" in result.stderr
        assert bool(hub.downloads()) == bool(code)
    assert "bytes freed" in result.stdout


def test_rm_leaves_what_others_need(server: Hub) -> None:
    server.add("terns/ggufs", GGUFS)
    small, large = pull("terns/ggufs:Q4_K_S"), pull("terns/ggufs:Q4_K_M")
    assert hub.remove(small) == 1
    assert large.is_whole()
    assert not small.is_whole()
    old = pull()
    server.add(REPO, {**NANO, "generation_config.json": b"{}"})
    new = pull()
    (former,) = (d for d in hub.downloads(REPO) if d.commit == old.commit)
    assert hub.remove(former) == len(NANO["generation_config.json"])
    assert new.is_whole()
    assert not old.path.exists()
    failed(command("rm", "-y", "nano"), "part of Sterna")
    failed(command("rm", "-y", str(BUILT_IN["nano"])), "yours to remove")
    failed(command("rm", "-y", f"{REPO}@{old.commit}"), "not downloaded")


@pytest.mark.parametrize("missing", [("symlink",), ("symlink", "link")])
def test_without_links_on_the_disk(
    server: Hub, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(1, "Operation not permitted")

    for name in missing:
        monkeypatch.setattr(os, name, refuse)
    found = pull()
    assert (found.path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
    assert not (found.path / WEIGHTS).is_symlink()
    assert hub.remove(found) == found.nbytes * len(missing)
    assert not store.Repository(REPO).folder.exists()


def test_nothing_missing_needs_no_space(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    monkeypatch.setattr(
        pulling.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0)
    )
    assert pull().is_whole()


def test_rm_of_a_transfer_left_half_done(server: Hub) -> None:
    server.cuts[WEIGHTS] = [1_000_000] + [0] * 20
    failure(pull, HubError)
    done = command("rm", "--yes", REPO)
    assert "1,000,000 bytes freed" in done.stdout
    assert not store.Repository(REPO).folder.exists() or not hub.partial_bytes(REPO)


def test_commands_fetch_a_model_by_its_name(server: Hub) -> None:
    texts = [
        command("generate", "--model", name, "--max-tokens", "3", "--seed", "1", "def f").stdout
        for name in ("nano", REPO)
    ]
    assert texts[0] == texts[1]
    server.requests.clear()
    assert command("generate", "--offline", "--model", REPO, "--max-tokens", "1", "x").stdout
    failed(command("generate", "--offline", "--model", "terns/none", "x"), "offline", "pull")
    failed(command("pull", "./folder"), "org/name")
    failed(command("pull", "nano"), "org/name")
    assert not server.requests


def test_the_environment_of_a_process(server: Hub, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and HF_HUB_DISABLE_XET, as a user sets them."""
    env = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    server.cuts[WEIGHTS] = [1_000_000]

    def sterna(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "sterna", *args]
        return subprocess.run(run, env=env | more, capture_output=True, text=True, timeout=60)

    done = sterna("pull", REPO)
    assert (done.returncode, done.stderr) == (0, "")  # no bar where there is no terminal
    assert str(tmp_path / "home" / "hub") in done.stdout
    done = sterna("pull", "terns/other", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "offline" in done.stderr


def test_a_terminal_sees_the_size_and_a_bar(server: Hub) -> None:
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
    env["HF_HUB_CACHE"] = constants.HF_HUB_CACHE
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    run = [sys.executable, "-m", "sterna", "pull", REPO]
    process = subprocess.Popen(run, env=env, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a pseudoterminal
        while data := os.read(ours, 65536):
            shown += data
    process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert b"terns/nano: 3.4 MB in 1 file, to " in shown
    assert b"terns/nano:   0%|" in shown
    assert TOKEN.encode() not in shown


def test_processes_pull_at_once_and_one_is_killed(server: Hub, tmp_path: Path) -> None:
    """A killed process leaves no lock and no half model; the next takes its bytes over."""
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
    env["HF_HUB_CACHE"] = constants.HF_HUB_CACHE
    server.cuts[WEIGHTS] = [1_500_000, 0, 0, 0, 0]  # the first waits for a better time
    run = [sys.executable, "-m", "sterna", "pull", REPO]
    first = subprocess.Popen(run, env=env, stderr=subprocess.PIPE)
    _wait_until(lambda: hub.partial_bytes(REPO) == 1_500_000)
    first.kill()
    first.communicate()
    assert not hub.downloads()
    server.cuts.clear()
    server.requests.clear()
    both = [subprocess.Popen(run, env=env, stdout=subprocess.PIPE) for _ in range(2)]
    outs = {process.communicate(timeout=60)[0] for process in both}
    assert outs == {f"{hub.downloads()[0].path}\n".encode()}
    assert server.fetched(WEIGHTS) == ["bytes=1500000-"]


def _wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    done = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError("waited in vain")
