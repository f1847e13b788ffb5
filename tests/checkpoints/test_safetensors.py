"""The safetensors reader and writer, against the package; damaged files have a test file too."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.checkpoints.safetensors import SafetensorsFile, write_safetensors
from sterna.errors import RequestError
from sterna.files import reading, writing

NUMPY_DTYPES = ["u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "?"]


def load(path: Path) -> dict[str, np.ndarray]:
    file = SafetensorsFile(path)
    return {name: file.read(info) for name, info in file.tensors.items()}


# --- agreement with the package ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4, 5)])
def test_package_and_we_read_each_others_files(tmp_path: Path, dtype: str, shape: tuple) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    safetensors.numpy.save_file({"x": array}, tmp_path / "theirs")
    write_safetensors(tmp_path / "ours", {"x": array})
    for path in (tmp_path / "theirs", tmp_path / "ours"):
        theirs, ours = safetensors.numpy.load_file(path)["x"], load(path)["x"]
        assert theirs.dtype == array.dtype
        assert theirs.shape == ours.shape == shape
        assert theirs.tobytes() == ours.tobytes() == array.tobytes()


def test_bf16_comes_back_as_its_bits(tmp_path: Path) -> None:
    bits = np.arange(0, 65536, 257, dtype=np.uint16).reshape(32, 8)
    theirs = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    safetensors.torch.save_file({"x": theirs}, tmp_path / "theirs")
    write_safetensors(tmp_path / "ours", {"x": ("BF16", bits)})
    for path in (tmp_path / "theirs", tmp_path / "ours"):
        info = SafetensorsFile(path).tensors["x"]
        assert (info.dtype, info.shape, info.nbytes) == ("BF16", (32, 8), bits.nbytes)
        read = load(path)["x"]
        assert read.dtype == np.uint16
        np.testing.assert_array_equal(read, bits)
        assert torch.equal(
            safetensors.torch.load_file(path)["x"].view(torch.int16), theirs.view(torch.int16)
        )


arrays = st.builds(
    lambda dtype, shape, seed: np.frombuffer(
        np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype
    ).reshape(shape),
    st.sampled_from(NUMPY_DTYPES[:-1]),
    st.lists(st.integers(1, 9), max_size=4).map(tuple),
    st.integers(0, 99),
)
names = st.text(min_size=1, max_size=12).filter(
    lambda n: n != "__metadata__" and not any("\ud800" <= c <= "\udfff" for c in n)
)


@settings(max_examples=150)
@given(tensors=st.dictionaries(names, arrays, max_size=6), metadata=st.dictionaries(names, names))
def test_round_trip_and_layout(tmp_path_factory: Any, tensors: dict, metadata: dict) -> None:
    path = tmp_path_factory.mktemp("rt") / "x.safetensors"
    write_safetensors(path, tensors, metadata)
    file = SafetensorsFile(path)
    assert file.data_offset % 64 == 0
    assert {**file.metadata, **metadata} == file.metadata
    ends_of_lines = [info.nbytes % 64 == 0 for info in file.tensors.values()]
    assert ends_of_lines == sorted(ends_of_lines, reverse=True)
    theirs = safetensors.numpy.load_file(path)
    assert set(theirs) == set(file.tensors) == set(tensors)
    for name, array in tensors.items():
        info = file.tensors[name]
        assert info.offset % array.dtype.itemsize == 0
        assert info.nbytes % 64 or info.offset % 64 == 0
        assert file.read(info).tobytes() == theirs[name].tobytes() == array.tobytes()
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        assert file.metadata[f"sha256.{name}"] == digest


def test_strided_read_only_and_big_endian_arrays_are_written_by_value(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    base.flags.writeable = False
    tensors = {"strided": base[::2, ::-1], "big": base.astype(">f4"), "fortran": base.T}
    write_safetensors(tmp_path / "x", tensors)
    for name, array in load(tmp_path / "x").items():
        np.testing.assert_array_equal(array, tensors[name])


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    tensors = {"b": np.ones(3, np.float32), "a": np.ones((16, 4), np.uint8)}
    for name in ("1", "2"):
        write_safetensors(tmp_path / name, tensors, {"k": "v"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_large_tensors_are_read_whole_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(reading, "allowed_cpus", lambda: frozenset(range(3)))
    array = np.random.default_rng(1).integers(0, 256, 123_457, np.uint8)
    write_safetensors(tmp_path / "x", {"x": array, "y": array[:5]})
    np.testing.assert_array_equal(load(tmp_path / "x")["x"], array)


# --- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", np.zeros(3, np.complex64)),
        ("x", np.array(["text"])),
        ("x", np.zeros((0, 3), np.float32)),
        ("x", np.zeros((1,) * 9, np.float32)),
        ("x", ("BF16", np.zeros(3, np.float32))),
        ("x", ("F17", np.zeros(3, np.float32))),
        ("", np.zeros(3, np.float32)),
        ("__metadata__", np.zeros(3, np.float32)),
        ("\ud800", np.zeros(3, np.float32)),
    ],
)
def test_what_the_format_lacks_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(RequestError):
        write_safetensors(tmp_path / "x", {name: value})
    assert list(tmp_path.iterdir()) == []


class _FullDisk:
    """A binary file on a disk that has room for `room` more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        if count > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._room -= count
        return int(self._file.write(data))

    def __enter__(self) -> _FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_safetensors(path, {"a": np.zeros(100)})
    whole = path.read_bytes()
    fdopen = os.fdopen
    for room in range(0, len(whole), 97):
        with monkeypatch.context() as patch:
            patch.setattr(
                writing.os, "fdopen", lambda *a, room=room, **k: _FullDisk(fdopen(*a, **k), room)
            )
            with pytest.raises(RequestError, match=f"with {len(whole)} bytes.*free disk space"):
                write_safetensors(path, {"a": np.ones(100)})
        assert path.read_bytes() == whole
        assert list(tmp_path.iterdir()) == [path]
    write_safetensors(path, {"a": np.ones(100)})
    assert path.read_bytes() != whole


def test_a_failing_flush_and_an_interrupt_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, expected in [
        (OSError(errno.EIO, "I/O error"), RequestError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ]:

        def fail(_: int, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(writing.os, "fsync", fail)
            with pytest.raises(expected):
                write_safetensors(tmp_path / "x", {"a": np.ones(3)})
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match="must be writable"):
        write_safetensors(tmp_path / "no" / "x", {"a": np.ones(3)})


@pytest.mark.skipif(os.name == "nt", reason="POSIX file modes")
def test_files_get_the_umask_s_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_safetensors(tmp_path / "x", {"a": np.ones(3)})
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
