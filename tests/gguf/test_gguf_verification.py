"""`sterna convert --verify` of GGUF files that Sterna writes: damage of bytes and of headers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoint_factory as factory
import gguf
import pytest

from sterna.convert import convert, gguf_export
from sterna.convert.verification import DAMAGED, SOUND, UNCHECKED, VERIFIED, Check, verify
from sterna.gguf import hashes
from sterna.gguf.hashes import HASHES

FLOAT = factory.RECIPES["llama-256"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    factory.write(root / "float", FLOAT)
    factory.write(root / "tied", replace(FLOAT, tied=True))
    return root


def test_verify(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    convert(sources / "tied", path, "gguf:Q4_0")
    assert {check.status for check in verify(path)} == {VERIFIED}
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    (bad,) = [check for check in verify(path) if check.status == DAMAGED]
    assert "SHA-256" in str(bad.problem)
    path.write_bytes(whole[:5000])
    (bad,) = verify(path)
    assert bad.status == DAMAGED


class Header:
    """Edits of a GGUF file's header that leave every place where it is."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, bytearray(path.read_bytes())

    def after(self, text: str) -> int:
        """Where the bytes after a string are."""
        whole = struct.pack("<Q", len(text)) + text.encode()
        assert self.data.count(whole) == 1, text
        return self.data.index(whole) + len(whole)

    def rename(self, names: dict[str, str]) -> None:
        places = {name: self.after(name) for name in names}
        for name, new in names.items():
            self.data[places[name] - len(name) : places[name]] = new.encode()

    def number(self, key: str, value: int) -> None:
        at = self.after(key) + 4
        self.data[at : at + 4] = struct.pack("<I", value)

    def tensor(self, name: str, type: int | None = None, swap: bool = False) -> None:
        at = self.after(name)
        sizes = struct.unpack_from("<2Q", self.data, at + 4)
        struct.pack_into("<2Q", self.data, at + 4, *(reversed(sizes) if swap else sizes))
        if type is not None:
            struct.pack_into("<I", self.data, at + 20, type)

    def verified(self) -> list[Check]:
        """The parts that `verify` finds damaged, and its verdict."""
        copy = self.path.with_name("spoilt.gguf")
        copy.write_bytes(self.data)
        *tensors, whole = verify(copy)
        return [*(check for check in tensors if check.status == DAMAGED), whole]


GATE, NEXT = "blk.0.ffn_gate.weight", "blk.1.ffn_gate.weight"
EDITS: dict[str, Callable[[Header], None]] = {
    "swapped": lambda h: h.rename({GATE: NEXT, NEXT: GATE}),
    "renamed": lambda h: h.rename({GATE: GATE.replace("gate", "gatf")}),
    "type": lambda h: h.tensor(GATE, type=gguf.GGMLQuantizationType.BF16),
    "shape": lambda h: h.tensor(GATE, swap=True),
    "layers": lambda h: h.number("llama.block_count", 1),
    "heads": lambda h: h.number("llama.attention.head_count", 2),
    "base": lambda h: h.number("llama.rope.freq_base", 0x47000000),
}


@pytest.mark.parametrize("name", EDITS)
def test_verify_finds_a_changed_header(sources: Path, tmp_path: Path, name: str) -> None:
    """Names, types, shapes and settings decide what the bytes mean."""
    convert(sources / "float", tmp_path / "m.gguf", "gguf:F16")
    assert {check.status for check in verify(tmp_path / "m.gguf")} == {VERIFIED}
    header = Header(tmp_path / "m.gguf")
    EDITS[name](header)
    checks = header.verified()
    assert DAMAGED in {check.status for check in checks}
    names = {"swapped": {GATE, NEXT}, "renamed": {GATE.replace("gate", "gatf")}}
    wrong = names.get(name, {GATE} if name in ("type", "shape") else {""})
    assert {check.tensor for check in checks if check.status == DAMAGED} == wrong
    if wrong == {""}:
        assert "metadata" in str(checks[-1].problem)


@pytest.mark.parametrize("name", EDITS)
def test_verify_of_files_whose_hashes_are_of_bytes_alone(
    sources: Path, tmp_path: Path, name: str
) -> None:
    """Here `verify` finds damage that a start refuses; otherwise the model is at most sound."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_export, "HASHES", hashes.BARE_HASHES)
        patch.setattr(gguf_export, "METADATA_HASH", "general.comment")
        patch.setattr(gguf_export._Tensor, "heading", b"")
        convert(sources / "float", tmp_path / "m.gguf", "gguf:F16")
    *tensors, whole = verify(tmp_path / "m.gguf")
    assert ({check.status for check in tensors}, whole.status) == ({VERIFIED}, SOUND)
    header = Header(tmp_path / "m.gguf")
    EDITS[name](header)
    statuses = {"renamed": UNCHECKED, "layers": UNCHECKED, "shape": DAMAGED, "heads": DAMAGED}
    assert header.verified()[-1].status == statuses.get(name, SOUND)


def test_verify_wants_a_hash_for_each_tensor(sources: Path, tmp_path: Path) -> None:
    convert(sources / "float", tmp_path / "m.gguf", "gguf:F16")
    header = Header(tmp_path / "m.gguf")
    at = header.after(HASHES) + 8
    (count,) = struct.unpack_from("<Q", header.data, at)
    header.data[at : at + 8] = struct.pack("<Q", count - 1)
    extra = at + 8 + 72 * (count - 1)  # the last hash's bytes become another key's
    header.data[extra : extra + 72] = struct.pack("<Q56sII", 56, b"x" * 56, 4, 0)
    (keys,) = struct.unpack_from("<Q", header.data, 16)
    header.data[16:24] = struct.pack("<Q", keys + 1)
    (check,) = header.verified()
    assert (check.status, HASHES in str(check.problem)) == (DAMAGED, True)
