"""ik_llama.cpp's own types: values are that program's, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_same_bits, failure

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

from gguf_factory import Tiny, build, metadata, raw_file  # noqa: E402
from gguf_models import floating, hf_name, logits  # noqa: E402
from ik_types import DIGESTS, IDS, digest, drawn_rows, head_places, layout_of  # noqa: E402

from sterna import LLM, ops  # noqa: E402
from sterna.errors import ModelFormatError, NonFiniteError, UnsupportedModelError  # noqa: E402
from sterna.formats.ggml_blocks import from_ggml  # noqa: E402
from sterna.gguf import ik_rows  # noqa: E402
from sterna.gguf.file import GgufFile  # noqa: E402
from sterna.gguf.interleaved_maps import MAPS, bit_map  # noqa: E402
from sterna.gguf.tensor_types import IK_TYPES  # noqa: E402

AFTER = ("z", (1,), 0, bytes(4))
INTERLEAVED = [i for i in (*IDS, 230, 353) if layout_of(i).rows > 1]


def name_of(type_id: int) -> str:
    return layout_of(type_id).name


def of_rows(path: Path, type_id: int, raw: np.ndarray, shape: tuple[int, ...]) -> GgufFile:
    raw_file(path, {}, [("m", shape, type_id, raw.tobytes()), AFTER])
    return GgufFile(path)


@pytest.mark.parametrize("type_id", IDS, ids=name_of)
def test_values_are_those_that_the_program_gives(type_id: int, tmp_path: Path) -> None:
    """Any bits of all types, to the bit; matrices of experts lie one after the other."""
    layout, raw = layout_of(type_id), drawn_rows(type_id)
    M, K = len(raw), 3 * layout.k
    for shape in ((M, K), (2, M // 2, K)):
        file = of_rows(tmp_path / "x.gguf", type_id, raw, shape)
        dtype = file.tensors["m"].dtype
        assert dtype == layout.name.partition("_R")[0]
        values = ops.dequantize(from_ggml(dtype.lower(), file.read("m")))
        assert digest(values) == DIGESTS[str(type_id)]


def test_mxfp4_and_bf16_by_definition(tmp_path: Path) -> None:
    """Eight exponents, then four bytes of each row in turn; pairs of numbers of sixteen rows."""
    raw = drawn_rows(353)
    got = of_rows(tmp_path / "x.gguf", 353, raw, (len(raw), 96)).read("m").reshape(-1, 8, 3, 17)
    for group, blocks in enumerate(raw.reshape(len(raw) // 8, 3, 136)):
        for b, block in enumerate(blocks):
            for r in range(8):
                codes = [block[8 + 32 * (i // 4) + 4 * r + i % 4] for i in range(16)]
                assert got[group, r, b].tolist() == [block[r], *codes]
    words = np.arange(32 * 6, dtype=np.uint16).reshape(2, 3, 16, 2)
    plain = of_rows(tmp_path / "x.gguf", 230, words, (32, 6)).read("m").view(np.uint16)
    np.testing.assert_array_equal(plain, words.transpose(0, 2, 1, 3).reshape(32, 6))


@pytest.mark.parametrize("type_id", INTERLEAVED, ids=name_of)
def test_rows_come_back(type_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit has one place, and rows that are put there come back, a few at a time."""
    layout, rng = layout_of(type_id), np.random.default_rng(type_id)
    places = bit_map(layout.name, layout.rows, 8 * layout.nbytes)
    assert (np.sort(places.reshape(-1)) == np.arange(places.size)).all()
    G, blocks = 5, 2
    shape = (G, layout.rows, blocks, layout.row + layout.nbytes)
    plain = rng.integers(0, 256, shape, np.uint8)
    plain[..., : layout.row] = plain[:, :, :1, : layout.row]
    bits = np.unpackbits(plain[..., layout.row :], axis=3, bitorder="little")
    stored = np.zeros((G, blocks, places.size), np.uint8)
    stored[..., places] = bits.transpose(0, 2, 1, 3)
    inside = np.packbits(stored, axis=2, bitorder="little").reshape(G, -1)
    heads = plain[:, :, 0, : layout.row].reshape(G, -1)
    raw = np.concatenate([heads, inside], axis=1)
    monkeypatch.setattr(ik_rows, "CHUNK_BYTES", 2 * raw.shape[1])
    monkeypatch.setattr(ik_rows, "_SIGNS", {})  # their form is not a place
    file = of_rows(tmp_path / "x.gguf", type_id, raw, (G * layout.rows, blocks * layout.k))
    np.testing.assert_array_equal(file.read("m"), plain.reshape(G * layout.rows, -1))


def test_maps_are_of_the_types_that_interleave() -> None:
    """No more, and no fewer."""
    assert {name_of(type_id) for type_id in INTERLEAVED} == set(MAPS)


@pytest.mark.parametrize("type_id", IK_TYPES, ids=IK_TYPES.get)
def test_types_that_do_not_run(type_id: int, tmp_path: Path) -> None:
    """They are named."""
    path = raw_file(tmp_path / "x.gguf", {}, [("m", (4, 256), type_id, bytes(4096)), AFTER])
    failure(
        lambda: GgufFile(path), UnsupportedModelError, "x.gguf: m:", IK_TYPES[type_id], "IQ4_KS"
    )


@pytest.mark.parametrize("type_id", INTERLEAVED, ids=name_of)
def test_rows_that_are_too_few(type_id: int, tmp_path: Path) -> None:
    """Rows lie together in fours, eights or sixteens, also in each expert's matrix."""
    layout = layout_of(type_id)
    row_bytes = layout.row + layout.nbytes
    for shape in ((2 * layout.rows - 2, layout.k), (layout.rows, 2, layout.k), (layout.k,)):
        count = int(np.prod(shape[:-1]))
        tensors = [("m", shape, type_id, bytes(count * row_bytes)), AFTER]
        path = raw_file(tmp_path / "x.gguf", {}, tensors)
        failure(
            lambda path=path: GgufFile(path), ModelFormatError, "m.shape",
            f"multiples of {layout.rows}", layout.name,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------- models

#: Of each of a layer's matrices, the type.
KINDS = {
    "attn_q": "IQ4_KS", "attn_k": "IQ4_K_R4", "attn_v": "Q6_0_R4", "attn_output": "IQ3_K",
    "ffn_gate": "IQ2_KL", "ffn_up": "IQ4_KS_R4", "ffn_down": "IQ2_KS",
}  # fmt: skip
MORE_BITS = {
    "attn_q": "IQ5_KS", "attn_k": "IQ5_K_R4", "attn_v": "IQ6_K", "attn_output": "IQ5_K",
    "ffn_gate": "IQ5_KS_R4", "ffn_up": "IQ5_K", "ffn_down": "IQ6_K",
}  # fmt: skip


def scaled_rows(type_id: int, M: int, K: int, d: float) -> np.ndarray:
    """Rows of any codes, whose d are all the same."""
    layout = layout_of(type_id)
    blocks = K // layout.k
    raw = np.random.default_rng(type_id).integers(
        0, 256, (M, layout.row + blocks * layout.nbytes), np.uint8
    )
    groups = raw.reshape(M // layout.rows, -1)
    size = 4 if layout.row == 4 else 2
    one = np.array([d], "<f4" if size == 4 else "<f2").view(np.uint8)
    for at in head_places(layout, blocks):
        groups[:, at : at + size] = one
    return raw


def values_of(path: Path, type_id: int, raw: np.ndarray, K: int) -> np.ndarray:
    file = of_rows(path, type_id, raw, (len(raw), K))
    return ops.dequantize(from_ggml(file.tensors["m"].dtype.lower(), file.read("m")))


def ik_model(path: Path, tiny: Tiny, kinds: dict[str, str] = KINDS) -> dict[str, np.ndarray]:
    """Writes a model of several types; returns the checkpoint's floats."""
    file, floats = build(replace(tiny, types={}))
    ids = {name_of(type_id): type_id for type_id in (*IDS, 141)}
    tensors = []
    for name, (w, _) in file.items():
        type_id, raw = 0, w.astype("<f4")
        if w.ndim == 2 and name.startswith("blk."):
            type_id = ids[kinds[name.split(".")[2]]]
            deviation = values_of(
                path, type_id, scaled_rows(type_id, *w.shape, 1), w.shape[1]
            ).std()
            raw = scaled_rows(type_id, *w.shape, (1.5 / w.shape[1]) ** 0.5 / deviation)
            floats[hf_name(name)] = values_of(path, type_id, raw, w.shape[1])
        tensors.append((name, w.shape, type_id, raw.tobytes()))
    raw_file(path, {"general.architecture": tiny.arch, **metadata(tiny)}, tensors)
    return floats


@pytest.mark.parametrize("kinds", [KINDS, MORE_BITS], ids=["four bits", "more bits"])
def test_a_model_of_several_types(kinds: dict[str, str], tmp_path: Path) -> None:
    """As floats it gives the logits of the float32 checkpoint to the bit; packed, nearly these."""
    path, tiny = tmp_path / "x.gguf", Tiny("qwen2", layers=1, seed=51)
    expected = logits(floating(tmp_path / "hf", tiny, ik_model(path, tiny, kinds)))
    assert_same_bits(logits(LLM(path, format="f32", head="f32")), expected)
    packed = logits(LLM(path))
    assert np.median(np.abs(packed - expected)) < 0.05 * expected.std()


def test_a_scale_that_is_not_finite(tmp_path: Path) -> None:
    """The error has the file's name, the tensor's, the block's and the row's."""
    path, tiny = tmp_path / "x.gguf", Tiny("qwen2", layers=1, seed=52)
    ik_model(path, tiny)
    data = bytearray(path.read_bytes())
    for name, row, at, word in (
        ("blk.0.attn_q.weight", 2, 0, b"\x00\x00\xc0\x7f"),
        ("blk.0.attn_k.weight", 3, 6, b"\x00\x7c"),
        ("blk.0.ffn_down.weight", 1, 0, b"\x00\xfc"),
    ):
        info, bad = GgufFile(path).tensors[name], data.copy()
        rows = 4 if name.endswith("attn_k.weight") else 1  # the first block of each has its d
        begin = info.offset + row // rows * rows * (info.nbytes // info.shape[0]) + at
        bad[begin : begin + len(word)] = word
        changed = tmp_path / "y.gguf"
        changed.write_bytes(bad)
        failure(
            lambda changed=changed: LLM(changed), NonFiniteError, "y.gguf", name,
            f"block 0 of row {row}", "inf" if len(word) == 2 else "nan",
        )  # fmt: skip
