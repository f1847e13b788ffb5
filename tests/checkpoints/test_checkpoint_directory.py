"""Folders in the Hugging Face layout: config, single and sharded weights, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.safetensors import write_safetensors
from sterna.errors import ModelFormatError, RequestError

TENSORS = {
    "model.norm.weight": np.arange(6, dtype=np.float32),
    "q.weight": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "k.weight": np.arange(12, dtype=np.float16).reshape(4, 3),
}
INDEX = "model.safetensors.index.json"


def make(folder: Path, config: Any = None, shards: dict[str, list[str]] | None = None) -> Path:
    """A checkpoint in one file, or in the shards given as file name -> tensor names."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"a": 1} if config is None else config))
    if shards is None:
        write_safetensors(folder / "model.safetensors", TENSORS)
        return folder
    for shard, names in shards.items():
        write_safetensors(folder / shard, {name: TENSORS[name] for name in names})
    write_index(folder, {name: shard for shard, names in shards.items() for name in names})
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refuse(folder: Path, part: str | None = None) -> ModelFormatError:
    with pytest.raises(ModelFormatError, match=part) as caught:
        Checkpoint.open(folder)
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("files", "got", "remedy"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter's folder", "--adapter"),
        (["snapshots/1f0/config.json", "refs/main"], "the Hub's cache", "pass .*snapshots.1f0$"),
        (["params.json", "tekken.json"], "Mistral's own", "consolidated.safetensors"),
        (["snapshots/1f0/README.md"], "none in it", "that holds the model's files"),
        (
            ["config.json", "model-00001-of-00002.safetensors"],
            "model-00001-of-00002", "download model.safetensors.index.json too",
        ),
        (["config.json", "gptq_model-4bit-128g.safetensors"], "gptq_model", "safetensors weights"),
    ],
)  # fmt: skip
def test_folders_of_other_kinds_say_what_to_pass(
    files: list[str], got: str, remedy: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    refuse(tmp_path, rf"but got .*{got}.*; .*{remedy}")


SHARDS = {"m-1.safetensors": ["q.weight"], "m-2.safetensors": ["k.weight", "model.norm.weight"]}


@pytest.mark.parametrize("shards", [None, SHARDS])
@pytest.mark.parametrize("as_text", [True, False])
def test_one_file_and_shards_read_alike(
    tmp_path: Path, shards: dict[str, list[str]] | None, as_text: bool
) -> None:
    folder = make(tmp_path / "m", {"hidden_size": 6}, shards)
    checkpoint = Checkpoint.open(str(folder) if as_text else folder)
    assert checkpoint.path == folder
    assert checkpoint.config == {"hidden_size": 6}
    assert set(checkpoint.tensors) == set(TENSORS)
    assert not checkpoint.is_packed
    assert "sha256.q.weight" in checkpoint.metadata
    for name, array in TENSORS.items():
        assert checkpoint.info(name).shape == array.shape
        np.testing.assert_array_equal(checkpoint.read(name), array)
    out = np.empty((3, 4), np.uint8)
    assert checkpoint.read("q.weight", out) is out


def test_the_single_file_wins_over_an_index(tmp_path: Path) -> None:
    folder = make(tmp_path)
    write_index(folder, {"x": "missing.safetensors"})
    assert set(Checkpoint.open(folder).tensors) == set(TENSORS)


def test_shards_may_hold_tensors_that_the_index_does_not_name(tmp_path: Path) -> None:
    folder = make(tmp_path, shards=SHARDS)
    write_index(folder, {"q.weight": "m-1.safetensors", "k.weight": "m-2.safetensors"})
    assert "model.norm.weight" in Checkpoint.open(folder).tensors  # as transformers loads it


@pytest.mark.parametrize(
    ("config", "packed"),
    [
        ({"quantization_config": {"quant_method": "sterna"}}, True),
        ({"quantization_config": {"quant_method": "bitnet"}}, False),
        ({"quantization_config": None}, False),
        ({"quantization_config": ["sterna"]}, False),
        ({}, False),
    ],
)
def test_is_packed(tmp_path: Path, config: Any, packed: bool) -> None:
    assert Checkpoint.open(make(tmp_path, config)).is_packed is packed


def test_require_names_file_tensor_expected_and_got(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(make(tmp_path))
    file = str(tmp_path / "model.safetensors")
    assert checkpoint.require("q.weight").nbytes == 12
    assert checkpoint.require("q.weight", [3, 4], "U8").dtype == "U8"
    assert checkpoint.require("q.weight", (3, 4), ("F32", "U8")).shape == (3, 4)
    for arguments, expected, got in [
        (("q.weight", (4, 3)), "shape [4, 3]", "U8 shape [3, 4]"),
        (("q.weight", (3, 4), "F32"), "F32 shape [3, 4]", "U8 shape [3, 4]"),
        (("q.weight", None, ("F32", "BF16")), "F32 or BF16", "U8 shape [3, 4]"),
        (("v.weight", (3, 4), "U8"), "U8 shape [3, 4]", "no such tensor"),
        (("v.weight",), "a tensor", "no such tensor"),
    ]:
        with pytest.raises(ModelFormatError) as caught:
            checkpoint.require(*arguments)  # type: ignore[arg-type]
        error = caught.value
        facts = (error.file, error.field, error.expected, error.got)
        assert facts == (file, arguments[0], expected, got)
    with pytest.raises(ModelFormatError, match=r"v\.weight"):
        checkpoint.read("v.weight")


def test_paths_that_are_no_model_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", "", "a\0b"):
        with pytest.raises(RequestError):
            Checkpoint.open(path)
    make(tmp_path / "m")
    with pytest.raises(RequestError, match="but got a file"):
        Checkpoint.open(tmp_path / "m" / "model.safetensors")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", r"with config\.json")


@pytest.mark.parametrize("present", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickled_weights_are_refused_with_the_reason(tmp_path: Path, present: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / present).write_bytes(b"\x80\x04.")
    assert "can run any code" in str(refuse(tmp_path, "pickled"))


@pytest.mark.parametrize("present", [None, "model.gguf", "other.safetensors"])
def test_no_weights(tmp_path: Path, present: str | None) -> None:
    (tmp_path / "config.json").write_text("{}")
    if present is not None:
        (tmp_path / present).touch()
    refuse(tmp_path, f"got {present}" if present else "no weights")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "{",
        '{"a": NaN}',
        '{"a": 1, "a": 2}',
        '{"a": 1e400}',
        '{"a":' * 70 + "1" + "}" * 70,
        '{"a": "\\udc00"}',
    ],
)
@pytest.mark.parametrize("file", ["config.json", INDEX])
def test_bad_json_is_refused(tmp_path: Path, file: str, text: str) -> None:
    folder = make(tmp_path, shards=SHARDS)
    (folder / file).write_text(text, encoding="utf-8")
    assert refuse(folder, file).file == str(folder / file)


def test_oversized_json_and_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 34)  # sparse: refused by its size alone
    refuse(folder, "at most 16777216 bytes")
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    refuse(folder, "a regular file")
    if hasattr(os, "mkfifo"):
        (folder / "config.json").rmdir()
        os.mkfifo(folder / "config.json")
        refuse(folder, "a regular file")


@pytest.mark.parametrize(
    "weight_map",
    [
        None,
        [],
        {},
        {"q.weight": 1},
        {"q.weight": None},
        {"q.weight": "../m-1.safetensors"},
        {"q.weight": "/m-1.safetensors"},
        {"q.weight": "..\\m-1.safetensors"},
        {"q.weight": "C:m-1.safetensors"},
        {"q.weight": "m-1.safetensors\0"},
        {"q.weight": "config.json"},
        {"q.weight": ""},
        {"q.weight": "missing.safetensors"},
        {"absent": "m-1.safetensors"},
        {"k.weight": "m-1.safetensors"},
    ],
)
def test_bad_indexes_are_refused(tmp_path: Path, weight_map: Any) -> None:
    write_index(make(tmp_path, shards=SHARDS), weight_map)
    refuse(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, shards=SHARDS)
    write_safetensors(folder / "m-2.safetensors", TENSORS)
    assert refuse(folder, "each tensor in one file").field == "q.weight"


def test_every_truncation_of_a_shard_or_the_index_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, shards=SHARDS)
    for name in ("m-1.safetensors", INDEX):
        data = (folder / name).read_bytes()
        for length in range(len(data)):
            (folder / name).write_bytes(data[:length])
            refuse(folder, name)
        (folder / name).write_bytes(data)
    Checkpoint.open(folder)
