"""Safetensors files that are damaged or meant to harm: refused, in little memory, with a reason."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.checkpoints import safetensors_header
from sterna.checkpoints.safetensors import SafetensorsFile, recorded_hash, write_safetensors
from sterna.checkpoints.tensor_file import check_hash
from sterna.errors import ModelFormatError, RequestError, SternaError
from sterna.files import jsonfile, reading

EDGES = [0, 1, -1, 2**31, 2**63, 2**64 - 1]


def raw_file(path: Path, entries: Any, data: bytes = b"") -> Path:
    """A file with any header (an object, or text taken as it is) and any data."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def load(path: Path) -> dict[str, np.ndarray]:
    file = SafetensorsFile(path)
    return {name: file.read(info) for name, info in file.tensors.items()}


def refuse(path: Path, part: str = "") -> ModelFormatError:
    with pytest.raises(ModelFormatError) as caught:
        SafetensorsFile(path)
    message = str(caught.value)
    assert part in message
    assert message.isprintable()
    assert caught.value.file == str(path)
    return caught.value


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three tensors, of which one begins at an odd offset."""
    entries = {
        "__metadata__": {"format": "pt"},
        "a": entry(),
        "b": entry("U8", [3], [24, 27]),
        "c": entry("BF16", [2], [27, 31]),
    }
    return raw_file(tmp_path / "small.safetensors", entries, bytes(range(31)))


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    assert set(load(small)) == {"a", "b", "c"}
    for length in range(len(data)):
        cut = tmp_path / "cut"
        cut.write_bytes(data[:length])
        refuse(cut)


@pytest.mark.parametrize("extra", [1, 8, 1000])
def test_bytes_after_the_last_tensor_are_refused(small: Path, extra: int) -> None:
    small.write_bytes(small.read_bytes() + b"\0" * extra)
    refuse(small, "as the tensors take")


@pytest.mark.parametrize("value", EDGES)
def test_header_length_at_edges(small: Path, value: int) -> None:
    data = small.read_bytes()
    small.write_bytes((value % 2**64).to_bytes(8, "little") + data[8:])
    assert refuse(small).offset in (0, 8)


@pytest.mark.parametrize("value", [*EDGES, 2**64, 10**63, -(2**63)])
@pytest.mark.parametrize("field", ["shape", "data_offsets"])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_header_fields_at_edges(
    small: Path, tmp_path: Path, name: str, field: str, index: int, value: int
) -> None:
    data = small.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    before = {n: a.tobytes() for n, a in load(small).items()}
    changed = (entries[name][field] + [1])[: max(index + 1, len(entries[name][field]))]
    changed[index] = value
    entries[name][field] = changed
    path = raw_file(tmp_path / "edge", entries, data[8 + length :])
    original = json.loads(data[8 : 8 + length])[name][field]
    if changed == original or ([*original, 1] == changed and field == "shape"):
        after = load(path)  # the value it had, or one more dimension of 1
        assert {n: a.tobytes() for n, a in after.items()} == before
    else:
        assert str(refuse(path).field).partition(".")[0] in entries


BAD_ENTRIES = {
    "no object": [1, 2],
    "null": None,
    "no dtype": {"shape": [2, 3], "data_offsets": [0, 24]},
    "no shape": {"dtype": "F32", "data_offsets": [0, 24]},
    "no offsets": {"dtype": "F32", "shape": [2, 3]},
    "unknown dtype": entry("F31"),
    "dtype of another kind": entry(["F32"]),
    "zero dimension": entry(shape=[0, 3], offsets=[0, 0]),
    "nine dimensions": entry(shape=[1] * 7 + [2, 3]),
    "a boolean dimension": entry(shape=[True, 6]),
    "a fraction": entry(shape=[2.0, 3]),
    "a number in text": entry(shape=["2", 3]),
    "shape of another kind": entry(shape=6),
    "shape is an object": entry(shape={"0": 2}),
    "one offset": entry(offsets=[0]),
    "three offsets": entry(offsets=[0, 24, 24]),
    "offsets reversed": entry(offsets=[24, 0]),
    "offsets too short": entry(offsets=[0, 20]),
    "a product beyond 64 bits": entry(shape=[2**31, 2**31, 2**31], offsets=[0, 24]),
    "a product that wraps to 24": entry("U8", [2**31, 2**31, 4], [0, 24]),
}


@pytest.mark.parametrize("bad", BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
def test_bad_entries_are_refused(tmp_path: Path, bad: Any) -> None:
    assert "x" in str(refuse(raw_file(tmp_path / "bad", {"x": bad}, bytes(24))).field)


def test_overlaps_and_gaps_are_refused(tmp_path: Path) -> None:
    def pair(first: list[int], second: list[int], size: int) -> Path:
        shapes = [[end - begin] for begin, end in (first, second)]
        entries = {"x": entry("U8", shapes[0], first), "y": entry("U8", shapes[1], second)}
        return raw_file(tmp_path / "pair", entries, bytes(size))

    assert set(load(pair([4, 8], [0, 4], 8))) == {"x", "y"}  # any order in the header is fine
    refuse(pair([0, 4], [0, 4], 4), "an overlap")
    refuse(pair([0, 4], [3, 8], 8), "an overlap")
    refuse(pair([0, 8], [2, 4], 8), "an overlap")
    refuse(pair([0, 4], [5, 8], 8), "a gap")
    refuse(pair([1, 4], [4, 8], 8), "a gap")
    refuse(pair([0, 4], [4, 8], 9), "as the tensors take")


BAD_JSON = {
    "duplicate tensor": (
        b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    ),
    "duplicate key": b'{"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
    "duplicate by an escape": b'{"__metadata__":{"a":"1","\\u0061":"2"}}',
    "NaN": b'{"__metadata__":{"a":NaN}}',
    "Infinity": b'{"x":Infinity}',
    "-Infinity": b'{"x":[-Infinity]}',
    "overflowing float": b'{"x":1e999}',
    "huge integer": b'{"x":' + b"9" * 10_000 + b"}",
    "depth bomb": b'{"x":' * 100_000,
    "array depth bomb": b'{"x":' + b"[" * 5_000_000,
    "closed depth bomb": b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "invalid UTF-8": b'{"\xff":1}',
    "lone surrogate": b'{"__metadata__":{"a":"\\ud800"}}',
    "no object": b"[1]",
    "leading space": b" {}",
    "BOM": b"\xef\xbb\xbf{}",
    "two values": b"{}{}",
    "zero padding": b"{}\0\0",
    "open string": b'{"x',
    "control character": b'{"a\nb":1}',
    "comment": b"{/**/}",
    "trailing comma": b'{"__metadata__":{},}',
    "metadata is a list": b'{"__metadata__":[]}',
    "metadata value is a number": b'{"__metadata__":{"a":1}}',
}


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_refused(tmp_path: Path, text: bytes) -> None:
    refuse(raw_file(tmp_path / "bad", text, b"\0"))


def test_json_depth_counts_no_brackets_in_strings(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    deep = jsonfile.MAX_DEPTH - 1
    tricky = '[[{"\\"[[\\\\' + "[" * 200
    path.write_text(json.dumps({"a": tricky, "b": json.loads("[" * deep + "]" * deep)}))
    assert jsonfile.load_json_object(path)["a"] == tricky
    path.write_text('{"b":' + "[" * (deep + 1) + "]" * (deep + 1) + "}")
    with pytest.raises(ModelFormatError, match="levels deep"):
        jsonfile.load_json_object(path)


@settings(max_examples=200)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
        ),
        max_leaves=20,
    ),
    st.integers(1, 9),
)
def test_sound_json_is_read_as_by_the_standard_library(value: Any, scan: int) -> None:
    saved, jsonfile._SCAN_BYTES = jsonfile._SCAN_BYTES, scan  # strings cross the scan's blocks
    try:
        for ascii_only in (True, False):
            text = json.dumps(value, ensure_ascii=ascii_only)
            assert jsonfile.parse_json(text.encode(), Path("x")) == value
    finally:
        jsonfile._SCAN_BYTES = saved


@settings(max_examples=600)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3))
def test_what_survives_mutation_reads_as_the_package_reads_it(
    tmp_path_factory: Any, edits: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("mutate") / "x"
    tensors = {"a": np.arange(6, dtype=np.float32), "b": np.arange(3, dtype=np.uint8)}
    data = bytearray(safetensors.numpy.save(tensors, {"k": "v"}))
    for at, byte in edits:
        data[at % len(data)] = byte
    path.write_bytes(data)
    try:
        ours = SafetensorsFile(path)
        read = {name: ours.read(info) for name, info in ours.tensors.items()}
    except ModelFormatError:
        return
    theirs = dict(safetensors.deserialize(bytes(data)))
    assert {n: (a.shape, a.tobytes()) for n, a in read.items()} == {
        n: (tuple(t["shape"]), bytes(t["data"])) for n, t in theirs.items()
    }


def test_a_file_that_claims_much_makes_us_allocate_little(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "sparse", {"x": entry("U8", [2**31, 2**10], [0, 2**41])})
    with path.open("r+b") as file:
        try:
            file.truncate(path.stat().st_size + 2**41)
        except OSError:
            pytest.skip("the file system has no sparse files of this size")
    tracemalloc.start()
    try:
        opened = SafetensorsFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert opened.tensors["x"].nbytes == 2**41


def test_limits_on_header_and_tensor_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"t{i}": entry("U8", [1], [i, i + 1]) for i in range(4)}
    path = raw_file(tmp_path / "x", entries, bytes(4))
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 3)
    refuse(path, "at most 3")
    with pytest.raises(RequestError, match="at most 3"):
        write_safetensors(tmp_path / "y", {n: np.zeros(1) for n in entries})
    monkeypatch.setattr(safetensors_header, "MAX_HEADER_BYTES", 100)
    refuse(path, "header length")


def test_things_that_are_no_files(tmp_path: Path) -> None:
    refuse(tmp_path / "missing", "nothing at this path")
    (tmp_path / "folder").mkdir()
    refuse(tmp_path / "folder", "regular file")
    (tmp_path / "empty").touch()
    refuse(tmp_path / "empty", "at least 8 bytes")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
        refuse(tmp_path / "fifo", "regular file")
    with pytest.raises(RequestError, match="must be readable"):
        SafetensorsFile("a\0b")


def test_a_file_cut_or_replaced_while_in_use_is_refused(small: Path) -> None:
    file = SafetensorsFile(small)
    data = small.read_bytes()
    with small.open("r+b") as handle:
        handle.truncate(len(data) - 5)
    with pytest.raises(ModelFormatError, match="changed since"):
        file.read("c")
    small.unlink()
    small.write_bytes(data)
    with pytest.raises(ModelFormatError, match="changed since"):
        file.read("a")
    span = reading.Span(len(data), 0, 9)
    with (
        reading.open_regular(small) as (descriptor, _),
        pytest.raises(ModelFormatError, match="truncated while in use"),
    ):
        reading.read_span(small, descriptor, memoryview(bytearray(9)), span)


def test_read_into_a_given_array(small: Path) -> None:
    file = SafetensorsFile(small)
    out = np.zeros((2, 3), np.float32)
    assert file.read("a", out) is out
    assert out.tobytes() == bytes(range(24))
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    wrong: list[Any] = [
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.int32),
        np.zeros((3, 2), np.float32).T,
        frozen,
    ]
    for array in wrong:
        with pytest.raises(RequestError, match="C-contiguous"):
            file.read("a", array)
    with pytest.raises(ModelFormatError, match="none of this name"):
        file.read("z")
    first, second = file.read("b"), file.read("b")
    first[:] = 0
    assert second.tobytes() == bytes(range(24, 27))


def check_hashes(path: Path, progress: Callable[[int], None] | None = None) -> None:
    file = SafetensorsFile(path)
    for info in file.tensors.values():
        expected = recorded_hash(file, info.name)
        assert expected is not None
        check_hash(file, info, expected, progress)


def test_a_wrong_hash_names_the_damaged_tensor(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_safetensors(path, {"a": np.zeros(64, np.uint8), "b": np.zeros(64, np.uint8)})
    seen: list[int] = []
    check_hashes(path, seen.append)
    assert sum(seen) == 128
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match="SHA-256") as caught:
        check_hashes(path)
    assert caught.value.field == "b"


# --- the error itself -------------------------------------------------------------------------


def test_model_format_error_is_one_printable_line_and_can_be_pickled() -> None:
    error = ModelFormatError(
        file="dir/model\n.safetensors",
        field="evil\x1b[2J\n" + "x" * 10_000,
        expected="F32 shape [3]",
        got=10**5000,
        offset=7,
        remedy="convert again",
    )
    message = str(error)
    assert message.isprintable()
    assert len(message) < 700
    assert "expected F32 shape [3], but got an integer of 16610 bits (at byte 7)" in message
    assert message.endswith("; convert again")
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == message
    assert (copied.file, copied.field, copied.offset) == (error.file, error.field, 7)
    assert isinstance(error, SternaError)
    assert str(ModelFormatError(file="f")) == "f: malformed"
    assert str(RequestError("two\nlines\x07")) == "two lines\\x07"
