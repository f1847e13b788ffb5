"""Models of the Hub, against a local server: what is fetched, chosen, resumed and checked."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf_factory
import huggingface_hub
import pytest
from helpers import failure
from hub_helpers import (
    GGUFS,
    NANO,
    NEEDED,
    REPO,
    WEIGHTS,
    blobs,
    files_below,
    pull,
)
from hub_server import Hub
from huggingface_hub import constants

from sterna import LLM
from sterna.checkpoints import hub
from sterna.checkpoints.hub import store
from sterna.checkpoints.hub.file_types import nominal_bits
from sterna.checkpoints.resolve import resolve
from sterna.errors import (
    HubError,
    ModelFormatError,
    RequestError,
)

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
    download = pull()
    assert files_below(download.path) == NEEDED
    assert {r.path.rpartition("/")[2] for r in server.requests[1:]} == NEEDED
    for name in NEEDED:
        assert (download.path / name).read_bytes() == NANO[name]


def test_the_cache_is_that_of_other_tools(server: Hub) -> None:
    """huggingface_hub finds the files, and its scan finds no fault."""
    download = pull()
    path = huggingface_hub.hf_hub_download(REPO, WEIGHTS, local_files_only=True)
    assert Path(path) == download.path / WEIGHTS
    scan = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    assert not scan.warnings
    (repo,) = scan.repos
    assert (repo.repo_id, {r.commit_hash for r in repo.revisions}) == (REPO, {download.commit})
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
    download = pull("terns/parts")
    assert files_below(download.path) == {*files, *names[:2]}
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
    path_here = resolve(f"terns/ggufs:{word}")
    assert path_here.read_bytes() == GGUFS[path]
    assert path_here.suffix == ".gguf"
    parts = sum(p.startswith("BF16") for p in files_below(hub.downloads()[0].path.parent.parent))
    assert parts == (2 if word == "BF16" else 0)
    server.requests.clear()
    assert resolve(f"terns/ggufs:{word.lower()}") == resolve(f"terns/ggufs:{path}") == path_here
    assert not server.requests


@pytest.mark.parametrize(
    ("kinds", "chosen", "why"),
    [
        (("Q8_0", "Q4_K_M", "Q4_0", "BF16"), "Q8_0", "the most bits a weight, up to Q8_0"),
        (("F16", "Q2_0", "PQ2_0"), "PQ2_0", "trained with"),
        (("F16", "q6_k", "Q2_K"), "q6_k", "up to Q8_0"),
    ],
)
def test_the_best_one_of_several(
    server: Hub, kinds: tuple[str, ...], chosen: str, why: str
) -> None:
    """A name without a word means the best that fits, says why, and means it later too."""
    bits = {kind: int(nominal_bits(kind.upper()) * 100) for kind in kinds}
    server.add("terns/usual", {f"a-{kind}.gguf": b"x" * n for kind, n in bits.items()})
    said: list[str] = []
    path = resolve("terns/usual", announce=said.append)
    assert path.name == f"a-{chosen}.gguf"
    assert f"of {len(kinds)} GGUF files" in said[0]
    assert why in said[0]
    assert "terns/usual:WORD" in said[0]
    server.requests.clear()
    assert resolve("terns/usual") == path
    assert not server.requests
    assert resolve(f"terns/usual:{chosen}") == path
    resolve(f"terns/usual:{kinds[-1]}")
    others = {f"terns/usual:a-{kinds[-1]}.gguf"} - {f"terns/usual:a-{chosen}.gguf"}
    assert {d.name for d in hub.downloads()} == {"terns/usual"} | others


def test_several_ggufs_are_listed(server: Hub) -> None:
    """Where a word fits none of them, and where two have the usual type."""
    server.add("terns/ggufs", GGUFS)
    shown = ("nano-Q4_K_M.gguf (1 bytes)", "more/nano.Q8_0.gguf", "BF16-00001-of-00002.gguf (3")
    example = "for example terns/ggufs:BF16,"
    word = "terns/ggufs:Q4"
    message = failure(lambda: resolve(word), RequestError, "no GGUF", "Q4", example, *shown)
    assert "mmproj" not in message
    assert "-00002-of" not in message
    failure(lambda: resolve(f"{REPO}:Q4_K_M"), RequestError, "has none")
    two = {"a/x-Q4_K_M.gguf": b"a", "b/x-Q4_K_M.gguf": b"b", "mmproj-F16.gguf": b"p"}
    server.add("terns/two", two)
    listed = ("several", "for example terns/two:a,", "a/x-Q4_K_M.gguf (1 bytes)")
    failure(lambda: resolve("terns/two"), RequestError, *listed)
    assert not hub.downloads()


def test_a_single_gguf_needs_no_word(server: Hub) -> None:
    server.add("terns/one", {"nano-Q4_K_M.gguf": b"m", "mmproj-F16.gguf": b"p", "README.md": b""})
    assert resolve("terns/one").name == "nano-Q4_K_M.gguf"
    (download,) = hub.downloads()
    assert download.name == "terns/one"
    server.add(REPO, {**NANO, "nano-Q8_0.gguf": b"8"})
    assert resolve(REPO).is_dir()  # safetensors come first, a GGUF by its word
    assert resolve(f"{REPO}:Q8_0").read_bytes() == b"8"
    assert {d.name for d in hub.downloads(REPO)} == {REPO, f"{REPO}:nano-Q8_0.gguf"}


def test_a_gguf_of_the_hub_runs(server: Hub, tmp_path: Path) -> None:
    path = tmp_path / "tiny-F16.gguf"
    gguf_factory.write(path, gguf_factory.Tiny(types={"": "F16"}))
    server.add("terns/tiny", {path.name: path.read_bytes(), "tiny-Q8_0.gguf": b"x"})
    texts = [
        LLM(model, threads=1).generate("hello", max_tokens=4, temperature=0).tokens
        for model in (path, "terns/tiny:F16")
    ]
    assert texts[0] == texts[1]


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
        downloads = list(pool.map(lambda _: pull(), range(4)))
    assert len({d.path for d in downloads}) == 1
    assert server.fetched(WEIGHTS) == [None]
    assert (downloads[0].path / WEIGHTS).read_bytes() == NANO[WEIGHTS]
