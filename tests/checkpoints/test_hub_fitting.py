"""Which of several GGUF files a name means: the best that fits into memory, and what is told."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_factory
import pytest
from helpers import command, failed, failure
from hub_helpers import NANO, REPO
from hub_server import Hub

from sterna import LLM, _native
from sterna.checkpoints import hub, model_shape
from sterna.checkpoints.hub import room
from sterna.checkpoints.hub.choose import choose, gguf_models
from sterna.checkpoints.hub.file_types import (
    kind_of,
    name_without_kind,
    nominal_bits,
    stem_of,
)
from sterna.checkpoints.hub.fitting import Offer, Room, best_of, coarse
from sterna.checkpoints.hub_names import HubName
from sterna.checkpoints.model_shape import (
    START_BYTES,
    UNKNOWN,
    Shape,
    shape_of_config,
    shape_of_gguf,
)
from sterna.checkpoints.resolve import resolve
from sterna.errors import RequestError

GB = 10**9
KINDS = "IQ1_S IQ2_XXS Q2_K Q3_K_M IQ4_XS Q4_K_M Q5_K_M Q6_K Q8_0 BF16".split()
KV = _native.kv_bytes(1, 2, 64, "i16")  # of a layer of the tiny models


def sizes_of(params: float, *kinds: str) -> dict[str, int]:
    """A repository with a file of each type."""
    return {f"m-{kind}.gguf": int(params * nominal_bits(kind) / 8) for kind in kinds or KINDS}


def best(sizes: dict[str, int], room: Room) -> Offer:
    """What fits of a repository."""
    return best_of(gguf_models(sizes), sizes, room)


# --------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("params", "free", "kind", "why"),
    [
        (1.2, 64, "Q8_0", "up to Q8_0"),  # floats hold no more
        (1.2, 1.7, "Q8_0", "up to Q8_0"),
        (1.2, 1.5, "Q6_K", "up to Q8_0"),
        (4, 64, "Q6_K", "at most 4 GB"),  # Q8_0 has 4.25 GB
        (8, 64, "Q4_K_M", "of about four bits"),
        (8, 5, "Q3_K_M", "up to Q8_0"),
        (70, 64, "Q4_K_M", "of about four bits"),
        (70, 20, "IQ1_S", "the only one"),
        (70, 26, "IQ2_XXS", "up to Q8_0"),
    ],
)
def test_the_most_bits_that_fit(params: float, free: float, kind: str, why: str) -> None:
    offer = best(sizes_of(params * 1e9), Room(int(free * GB)))
    assert offer.best is not None
    assert offer.best.kind == kind
    assert why in offer.why


def test_experts_that_are_not_read_cost_no_time() -> None:
    sizes = sizes_of(30e9)
    dense = best(sizes, Room(64 * GB, params=30 * GB))
    sparse = Shape(0, 0, expert_params=29 * GB, expert_share=1 / 16)
    offer = best(sizes, Room(64 * GB, params=30 * GB, shape=lambda _: sparse))
    assert dense.best is not None
    assert offer.best is not None
    assert (dense.best.kind, offer.best.kind) == ("Q4_K_M", "Q8_0")
    assert offer.best.read < dense.best.read


def test_keys_and_values_count() -> None:
    sizes = sizes_of(1.2e9)
    shape = Shape(context=100_000, kv_bytes=64_000)
    kinds = []
    for context in (None, 8192, 4096, 30_000):
        offer = best(sizes, Room(2 * GB, context, shape=lambda _: shape))
        assert offer.tokens == (context or 8192)
        assert offer.best is not None or context == 30_000
        kinds.append(offer.best.kind if offer.best else None)
    assert kinds == ["Q6_K", "Q6_K", "Q8_0", None]
    assert Shape(2048, 1).tokens(None) == 2048  # a short one is the whole


def test_nothing_fits() -> None:
    listed = ("10 GGUF files", "1.9 GB", "m-IQ1_S.gguf (2.0 GB)", "needs 2.4 GB", "a/b:IQ1_S")
    sizes = sizes_of(8e9)
    failure(lambda: choose(HubName("a/b"), sizes, Room(2 * GB)), RequestError, *listed)
    assert choose(HubName("a/b", file="Q8_0"), sizes, Room(2 * GB)).gguf == "m-Q8_0.gguf"
    one = {"m-Q8_0.gguf": 8 * GB}  # a repository with one file leaves no choice
    assert choose(HubName("a/b"), one, Room(2 * GB)).gguf == "m-Q8_0.gguf"


def test_what_is_here_comes_first() -> None:
    sizes = sizes_of(1e9)
    for here, default, kind in (
        ({"Q4_K_M"}, None, "Q4_K_M"),
        ({"Q4_K_M", "Q6_K"}, None, "Q6_K"),
        ({"Q4_K_M", "Q6_K"}, "Q4_K_M", "Q4_K_M"),
        ({"BF16"}, None, "Q6_K"),  # which does not fit
        ({"BF16"}, "BF16", "BF16"),  # the name has meant it before
    ):
        paths = frozenset(f"m-{k}.gguf" for k in here)
        limit = Room(GB * 3 // 2 - 200_000_000, here=paths, default=default and f"m-{default}.gguf")
        offer = best(sizes, limit)
        assert offer.best is not None
        assert offer.best.kind == kind
        assert ("here already" in offer.why) == (kind in here)


def test_names_say_which_files_are_one_model() -> None:
    """The largest group that differs in the type; towers, matrices and other models are none."""
    sizes = {
        "Big-Model-UD-Q4_K_XL.gguf": 40, "Big-Model-Q8_0-00001-of-00002.gguf": 40,
        "Big-Model-Q8_0-00002-of-00002.gguf": 40, "BF16/Big-Model-BF16.gguf": 160,
        "draft-Q8_0.gguf": 90, "mmproj-BF16.gguf": 500, "Big-Model.imatrix.gguf": 500,
        "imatrix-Q8_0.gguf": 500,
    }  # fmt: skip
    offer = best(sizes, Room())
    assert offer.best is not None
    assert (offer.best.kind, offer.best.nbytes) == ("Q8_0", 80)
    assert {c.path for c in offer.candidates} == set(gguf_models(sizes))
    choice = choose(HubName("a/b"), sizes)
    assert choice.files == tuple(p for p in sizes if "Q8_0-0" in p)
    for two in (
        {"a-Q8_0.gguf": 1, "b-Q8_0.gguf": 1},
        {"x/a-Q8_0.gguf": 1, "y/a-Q8_0.gguf": 2},
        {"a.gguf": 1, "b.gguf": 1},
    ):
        for here in ((), two):
            assert best(two, Room(here=frozenset(here))).best is None
        failure(lambda two=two: choose(HubName("a/b"), two), RequestError, "has several")
        chosen = best(two, Room(here=frozenset([*two][:1]))).best
        assert chosen is not None
        assert chosen.path == next(iter(two))


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("Llama-3-8B.Q4_K_M.gguf", "Q4_K_M", "llama-3-8b"),
        ("x/UD-Q2_K_XL/Q-UD-Q2_K_XL-00001-of-00003.gguf", "Q2_K_XL", "q"),
        ("ggml-model-i2_s.gguf", "I2_S", "ggml-model"),
        ("m.i1-IQ3_XXS.gguf", "IQ3_XXS", "m.i1"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4", "gpt-oss-20b"),
        ("m-PQ2_0.gguf", "PQ2_0", "m"),
        ("model.gguf", None, "model"),
        ("SmolQ8_0x.gguf", None, "smolq8_0x"),
    ],
)
def test_types_in_names(path: str, kind: str | None, name: str) -> None:
    assert kind_of(stem_of(path)) == kind
    assert name_without_kind(stem_of(path)) == name


def test_steps_of_memory() -> None:
    assert coarse(15_900_000_000) == coarse(15_100_000_000) == 14 << 30
    assert coarse(0) == 0
    for free in (1, 7, 10**6, 10**9 + 7, 10**12):
        assert free * 7 / 8 <= coarse(free) <= free


# --------------------------------------------------------------------------------- a model's shape


def test_shapes_of_files(tmp_path: Path) -> None:
    keys = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    keys |= {"llama.expert_feed_forward_length": 128}
    gguf_factory.write(tmp_path / "m.gguf", gguf_factory.Tiny(keys=keys))
    start = (tmp_path / "m.gguf").read_bytes()[:START_BYTES]
    shape = shape_of_gguf(start)
    assert shape == Shape(shape.context, 2 * KV, 2 * 8 * 3 * 256 * 128, 0.25)
    assert shape.context > 0
    assert shape.active_share(2 * shape.expert_params) == 0.625
    for end in range(0, 3000, 7):  # whatever is cut off is unknown
        cut = shape_of_gguf(start[:end])
        assert cut.kv_bytes in (0, 2 * KV, *(n * KV for n in range(8)))
    for at in range(0, 2000, 3):
        damaged = start[:at] + b"\xff" * 8 + start[at + 8 :]
        assert shape_of_gguf(damaged).kv_bytes >= 0
    assert shape_of_gguf(b"") == shape_of_gguf(b"PK\3\4" * 9) == UNKNOWN


def test_shapes_of_configs() -> None:
    text = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"hidden_size": 256, "max_position_embeddings": 512}
    assert shape_of_config(text) == shape_of_config({"text_config": text}) == Shape(512, 2 * KV)
    assert shape_of_config({**text, "num_hidden_layers": -1}).kv_bytes == 0
    assert shape_of_config({"text_config": 3, "hidden_size": "x"}) == UNKNOWN


# ------------------------------------------------------------------------------------- on the Hub


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free memory, to be set, and models that need nothing besides their weights."""
    bytes_free = [1 << 40]
    monkeypatch.setattr(model_shape, "BASE_BYTES", 0)
    monkeypatch.setattr(room, "available_bytes", lambda: bytes_free[0])
    return bytes_free


def files_of(tmp_path: Path) -> dict[str, bytes]:
    """Tiny models of three types, as files of a repository."""
    files = {}
    for kind in ("F16", "Q8_0", "Q4_0"):
        gguf_factory.write(tmp_path / "m.gguf", gguf_factory.Tiny(types={"": kind}, table="F16"))
        files[f"tiny-{kind}.gguf"] = (tmp_path / "m.gguf").read_bytes()
    return files


def test_a_name_means_what_fits(server: Hub, tmp_path: Path, free: list[int]) -> None:
    files = files_of(tmp_path)
    server.add("terns/tiny", files)
    server.about["terns/tiny"] = {"gguf": {"total": 1_000_000, "architecture": "llama"}}
    kv = 2 * KV * 128
    free[0] = len(files["tiny-Q4_0.gguf"]) * 21 // 20 + kv
    free[0] += free[0] // 7  # the step
    assert free[0] < len(files["tiny-Q8_0.gguf"]) + kv
    said: list[str] = []
    path = resolve("terns/tiny", announce=said.append, context=128)
    assert path.name == "tiny-Q4_0.gguf"
    assert "Q4_0" in said[0]
    assert "of 3 GGUF files, the only one that fits" in said[0]
    assert "with 128 tokens" in said[0]
    assert "terns/tiny:WORD" in said[0]
    assert server.fetched("tiny-Q4_0.gguf") == [f"bytes=0-{START_BYTES - 1}", None]
    free[0] = 1 << 40  # later the name means the same, with and without the Hub
    server.requests.clear()
    assert resolve("terns/tiny") == path
    assert not server.requests
    assert hub.pull(HubName("terns/tiny")).path == path
    assert resolve("terns/tiny:Q8_0").name == "tiny-Q8_0.gguf"
    assert {d.name for d in hub.downloads()} == {"terns/tiny", "terns/tiny:tiny-Q8_0.gguf"}


def test_a_context_too_long_is_refused_before_a_download(
    server: Hub, tmp_path: Path, free: list[int]
) -> None:
    server.add("terns/tiny", files_of(tmp_path))
    free[0] = 100 << 20
    words = ("tiny-Q4_0.gguf", "1,000,000 tokens", "terns/tiny:Q4_0")
    failure(lambda: LLM("terns/tiny", context=1_000_000), RequestError, *words)
    failed(command("generate", "--model", "terns/tiny", "--context", "1000000", "x"), *words)
    assert not hub.downloads()
    assert LLM("terns/tiny", threads=1, context=64).generate("a", max_tokens=1).tokens


def test_a_file_that_is_here_is_taken(server: Hub, tmp_path: Path, free: list[int]) -> None:
    server.add("terns/tiny", files_of(tmp_path))
    path = resolve("terns/tiny:Q4_0")
    said: list[str] = []
    server.requests.clear()
    assert resolve("terns/tiny", announce=said.append) == path
    assert "here already" in said[0]
    assert len(server.requests) == 1  # the listing
    (download,) = hub.downloads()
    assert download.name == "terns/tiny"


def test_a_server_without_ranges_is_cut_off(server: Hub, tmp_path: Path, free: list[int]) -> None:
    server.add("terns/tiny", files_of(tmp_path))
    server.ranges = False
    assert hub.offered(HubName("terns/tiny"), 64).best is not None
    server.status["tiny-Q4_0.gguf"] = (500, "")  # then keys and values are unknown
    offer = hub.offered(HubName("terns/tiny"), 1 << 40)
    assert offer.best is not None
    assert offer.best.kind == "Q8_0"


# ------------------------------------------------------------------------------------ sterna info


@pytest.mark.usefixtures("little_bandwidth")
def test_info_lists_a_repository(server: Hub, tmp_path: Path, free: list[int]) -> None:
    files = files_of(tmp_path)
    server.add("terns/tiny", {**files, "mmproj-F16.gguf": b"p"})
    server.about["terns/tiny"] = {"gguf": {"total": 1_000_000}}
    rows = json.loads(command("info", "terns/tiny", "--json", "--context", "256").stdout)
    by_type = {row["type"]: row for row in rows}
    assert [*by_type] == ["F16", "Q8_0", "Q4_0"]
    row = by_type["Q8_0"]
    nbytes = len(files["tiny-Q8_0.gguf"])
    assert row["model"] == "terns/tiny:tiny-Q8_0.gguf"
    assert row["size_bytes"] == nbytes
    assert row["bits"] == round(nbytes * 8 / 1e6, 2)
    assert row["memory_bytes"] == nbytes + nbytes // 20 + 256 * 2 * KV
    assert row["memory_context"] == 256
    assert row["tokens_per_s"] > 0
    assert [row["best"] for row in rows] == [False, True, False]
    assert not any(row["here"] for row in rows)
    assert not hub.downloads()
    free[0] = 1000
    result = command("info", "terns/tiny", "--no-bandwidth")
    assert result.stdout.count("too large") == 3
    assert "no file fits" in result.stdout
    free[0] = 1 << 40
    resolve("terns/tiny:Q4_0")
    text = command("info", "terns/tiny", "--files", "--no-bandwidth").stdout
    assert "best, here" in text  # what is here comes first
    resolve("terns/tiny")
    (row,) = json.loads(command("info", "terns/tiny", "--json", "--no-bandwidth").stdout)
    assert row["architecture"] == "LlamaForCausalLM"  # one that is here says what it is
    assert row["size_bytes"] == len(files["tiny-Q4_0.gguf"])
    failed(command("info", "terns/tiny", "--context", "0"), "context")
    failed(command("info", "nano", "--files"), "files", "name on the Hub")


def test_info_lists_safetensors(server: Hub, free: list[int]) -> None:
    server.add(REPO, {**NANO, "nano-Q4_K_M.gguf": b"m"})
    rows = json.loads(command("info", REPO, "--json", "--no-bandwidth").stdout)
    assert [row["model"] for row in rows] == [REPO, f"{REPO}:nano-Q4_K_M.gguf"]
    assert rows[0]["best"]
    assert rows[0]["memory_bytes"] > rows[0]["size_bytes"] == len(NANO["model.safetensors"])
    server.add("terns/none", {"README.md": b""})
    failed(command("info", "terns/none"), "without weights")


@pytest.mark.usefixtures("little_bandwidth")
def test_info_of_what_is_here(tmp_path: Path, checkpoint: object) -> None:
    path = tmp_path / "m.gguf"
    gguf_factory.write(path, gguf_factory.Tiny(types={"": "Q4_0"}))
    row, short = (
        json.loads(command("info", str(path), "--json", *more).stdout)[0]
        for more in ((), ("--context", "16", "--no-bandwidth"))
    )
    assert row["size_bytes"] == path.stat().st_size
    assert row["memory_bytes"] - short["memory_bytes"] == (row["memory_context"] - 16) * 2 * KV
    assert row["fits"]
    assert row["tokens_per_s"] > 0
    text = command("info", "nano", "--no-bandwidth").stdout
    for name in ("size", "memory", "speed", "tokens of context"):
        assert name in text
