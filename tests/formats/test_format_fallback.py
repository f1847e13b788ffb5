"""Matrices whose rows are no whole blocks of a format: the fallback format, and its message."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest
from helpers import command, failure

import sterna.ops as ops
from sterna import formats, loading
from sterna.convert import convert
from sterna.errors import RequestError
from sterna.weights.format_fallback import Made, format_fallbacks

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

#: SmolLM2's kind of width: whole blocks of 64 and of 32, none of 256 or 128.
WIDE = replace(factory.RECIPES["llama-256"], hidden=192, intermediate=320, heads=4, seed=5)
#: The format asked for, and what llama.cpp's quantiser has in its place.
PAIRS = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    "iq4_xs": "iq4_nl",
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return factory.write(tmp_path_factory.mktemp("m") / "wide", WIDE)


def layers_of(model: loading.Model) -> dict[str, formats.PackedWeight]:
    return {n: w for n, w in model.weights.modules.items() if n.startswith("model.layers.")}


@pytest.mark.parametrize(("asked", "taken"), PAIRS.items())
def test_a_model_runs_in_what_takes_its_place(
    source: Path, tmp_path: Path, asked: str, taken: str
) -> None:
    """Loaded, packed, and as a GGUF file it is the same; loading says it, also from the cache."""
    told = rf"{asked}: rows of 192 and 320 are no whole blocks of 256, so 8 matrices have {taken} "
    with pytest.warns(RuntimeWarning, match=told + r"in its place: .*layers\.\*.*q"):
        model = loading.load(source, format=asked, cached=False)
    assert {w.format for w in layers_of(model).values()} == {taken}
    convert(source, tmp_path / "packed", asked)
    convert(source, tmp_path / "m.gguf", f"gguf:{asked.upper()}")
    for path in (tmp_path / "packed", tmp_path / "m.gguf"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other = loading.load(path, cached=False)
        for name, weight in layers_of(model).items():
            np.testing.assert_array_equal(layers_of(other)[name].codes, weight.codes)
            np.testing.assert_array_equal(layers_of(other)[name].scale, weight.scale)
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert types["blk.0.ffn_down.weight"] == taken.upper()
    assert types["output.weight"] == "Q8_0"  # q6_k's place
    with pytest.warns(RuntimeWarning, match=told):  # asked for again, it is what it is
        loading.load(tmp_path / "packed", format=asked)


def test_a_start_from_the_cache_says_it_too(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="q6_k: rows of 192 .* q8_0 .*: model.emb.*, lm_"):
            model = loading.load(source, head="q6_k")
        assert model.head == "q8_0"
        model.keep()
        if model.store is not None:
            model.store.join()


def test_groups_are_made_to_fit(source: Path, tmp_path: Path) -> None:
    """Of groups, the longest that divide a row and the group asked for."""
    losses = convert(source, tmp_path / "m", "i4:g128")
    assert {loss.format for loss in losses if ".layers." in loss.name} == {"i4:g64"}
    with pytest.warns(RuntimeWarning, match="i4:g128: rows of 192 and 320 .* have i4:g64"):
        assert loading.load(source, format="i4:g128", cached=False).format == "i4:g64"


@pytest.mark.parametrize("verb", ["convert", "quantize"])
def test_the_command_says_which(source: Path, tmp_path: Path, verb: str) -> None:
    arguments = (verb, str(source), str(tmp_path / "m"), "--format", "q4_k")
    lines = command(*arguments).stdout.splitlines()
    (line,) = [line for line in lines if "in its place" in line]
    assert line.startswith("q4_k: rows of 192 and 320 are no whole blocks of 256, so ")
    for name in ("model.layers.*.self_attn.q_proj", "model.layers.*.mlp.up_proj"):
        assert name in line
    if verb == "convert":
        (row,) = json.loads(command(*arguments, "--force", "--json").stdout)
        assert line in row["replaced"]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: ops.quantize(np.ones((2, 576), np.float32), "q4_k"), ("256", "q5_0")),
        (lambda: ops.quantize(np.ones((2, 576), np.float32), "q6_k"), ("256", "q8_0")),
        (lambda: ops.quantize(np.ones((2, 40), np.float32), "q5_1"), ("32", "i8")),
    ],
)
def test_a_refusal_names_what_fits(act: Callable[[], object], words: tuple[str, ...]) -> None:
    failure(act, RequestError, "K must be a multiple of", *words)


def test_every_place_taken_is_a_format_of_short_blocks() -> None:
    for f in map(formats.get, formats.names()):
        other = formats.fitting(f, 576)
        assert 576 % other.scales.block == 0 or not f.instead
        assert formats.fitting(f, 512) is f
        assert formats.fitting(f, 50) is f  # nothing of GGUF fits


def test_lines_have_the_kinds_of_layers() -> None:
    many = [Made(f"model.layers.{i}.{'abcdefghij'[i % 10]}", 96, "q5_0") for i in range(30)]
    (line,) = map(str, format_fallbacks(many, "q4_k", None))
    assert "so 30 matrices have q5_0" in line
    assert line.endswith("model.layers.*.h and 2 more")
    as_files = [Made("model.layers.0.x", 40, "F16"), Made("model.layers.0.gate", 40, "f32")]
    (line,) = map(str, format_fallbacks(as_files, "q4_0", "int8"))
    assert "so 1 matrix has F16 in its place: model.layers.*.x" in line
