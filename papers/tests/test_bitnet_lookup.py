"""bitnet.cpp's TL2 and TL1 as peers: with a generator and kernels that are written here, and with
those of a checkout where one is named."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
import pytest

from sterna.errors import RequestError
from sterna_papers.peers import PEERS, bitnet_cpp, bitnet_lookup
from sterna_papers.peers.case import Missing, Options

HERE = Path(__file__).parent
KERNELS = HERE / "bitnet_lookup_kernels.h"
GGML_BITNET = """#include "ggml.h"
#include "ggml-backend.h"
typedef float bitnet_float_type;
struct bitnet_tensor_extra { ggml_tensor tensor; };
"""
TL2, TL1 = (bitnet_lookup.VARIANTS[name] for name in ("TL2", "TL1"))
needs_x86 = pytest.mark.skipif(platform.machine() not in TL2.machines, reason="TL2 needs x86-64")
needs_checkout = pytest.mark.skipif(
    not os.environ.get(bitnet_cpp.VARIABLE),
    reason=f"no checkout of microsoft/BitNet named: set {bitnet_cpp.VARIABLE}",
)


def options(scratch: Path, shape: str, variant: str = "TL2", n: tuple[int, ...] = (1,)) -> Options:
    return Options(shape=shape, variant=variant, threads=2, pp=(), tg=(), n=n, scratch=str(scratch))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "BitNet"
    generator = (HERE / "bitnet_generator.py").read_text().replace('"KERNELS"', f'"{KERNELS}"')
    converter = (HERE / "bitnet_converter.py").read_text()
    for name, text in (
        (
            "utils/codegen_tl2.py",
            generator.replace("#define SHAPES", "#define TOKEN b\\n#define SHAPES"),
        ),
        ("utils/codegen_tl1.py", generator),
        (bitnet_lookup.CONVERTER, converter),
        ("include/ggml-bitnet.h", GGML_BITNET),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv(bitnet_cpp.VARIABLE, str(folder))
    return folder


@needs_x86
@pytest.mark.parametrize("shape", ["480x448", "96x96", "1280x192"])
def test_all_tiles_and_tokens(shape: str, checkout: Path, tmp_path: Path) -> None:
    """Threads share tiles, tokens come in eights and alone, K may leave pairs over, or not."""
    given = options(tmp_path, shape, n=(1, 7, 41))
    version, kind, head, (part,) = bitnet_lookup.create(given)
    assert (version, kind, head) == ("unknown", "TL2", None)
    assert [case.n for case in part.cases] == [1, 7, 41]
    for case in part.cases:
        ok, how = part.check(case)
        assert ok, how
        assert part.time(case)[1]
    M, K = map(int, shape.split("x"))
    three, two = K // 96 * 96, K % 96
    assert part.weight_bytes(part.cases[0]) == M * (three / 3 * 5 / 8 + two / 4)


@needs_x86
def test_outputs_in_one_place_show(checkout: Path, tmp_path: Path) -> None:
    """The check says how many outputs differ, and by how much."""
    path = checkout / "utils/codegen_tl2.py"
    path.write_text(path.read_text().replace("#define TOKEN b", "#define TOKEN 0"))
    *_, (part,) = bitnet_lookup.create(options(tmp_path, "64x96", n=(1, 7, 8)))
    one, seven, eight = (part.check(case) for case in part.cases)
    assert one[0]
    assert seven[0]
    assert not eight[0]
    assert " of 512 outputs differ from the integers (exact), by up to " in eight[1]
    assert eight[1].endswith("for 8 tokens write all to one place)")


@pytest.mark.parametrize(
    ("variant", "shape", "says"),
    [
        ("TL2", "100x192", "TL2 needs M in 32s, and K in 32s from 96 on, but got 100x192"),
        ("TL2", "128x100", "TL2 needs .* 128x100"),
        ("TL2", "128x64", "TL2 needs .* 128x64"),
        ("TL1", "128x96", "TL1 needs M in 32s, and K in 64s, but got 128x96"),
        ("TL1", "100x64", "TL1 needs .* 100x64"),
    ],
)
def test_shapes_that_it_cannot_do(
    variant: str,
    shape: str,
    says: str,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = bitnet_lookup.VARIANTS[variant].machines[0]
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(RequestError, match=says):
        bitnet_lookup.create(options(tmp_path, shape, variant))


@pytest.mark.parametrize(
    ("variant", "machine", "says"),
    [
        ("TL1", "x86_64", "TL1 needs ARM with NEON, and this is x86_64"),
        ("TL2", "aarch64", "TL2 needs x86-64 with AVX2, and this is aarch64"),
    ],
)
def test_other_machines(
    variant: str, machine: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said by name, with or without a checkout."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(Missing, match=says):
        bitnet_lookup.create(options(tmp_path, "128x192", variant))
    assert variant in [entry.variant for entry in PEERS["bitnet.cpp"]]


@needs_x86
def test_what_is_missing_is_said(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the kernels' vectors to the checkout itself."""

    def create() -> None:
        bitnet_lookup.create(options(tmp_path, "64x96"))

    monkeypatch.setenv("CXX", "c++ -mno-avx2")
    with pytest.raises(Missing, match=r"cannot be compiled.*TL2 needs AVX2"):
        create()
    generator = checkout / "utils/codegen_tl2.py"
    text = generator.read_text()
    generator.write_text(text.replace("M % BM == 0", "M % BM == 1"))
    with pytest.raises(Missing, match=r"codegen_tl2\.py failed: AssertionError: M %% BM"):
        create()
    generator.write_text(text.replace("ModelShapeDict =", "Shapes ="))
    with pytest.raises(Missing, match=r"codegen_tl2\.py has no list ModelShapeDict"):
        create()
    converter = checkout / bitnet_lookup.CONVERTER
    converter.write_text("")
    with pytest.raises(Missing, match="has no function preprocess_weights_tl2"):
        create()
    converter.unlink()
    with pytest.raises(Missing, match=r"has no utils/convert-hf-to-gguf-bitnet\.py"):
        create()
    monkeypatch.delenv(bitnet_cpp.VARIABLE)
    with pytest.raises(Missing, match="STERNA_BITNET_CPP"):
        create()


@needs_checkout
@pytest.mark.parametrize("variant", ["I2_S", "I2_S rows of 4", "TL2", "TL1"])
def test_a_checkouts_own_kernels(variant: str, tmp_path: Path) -> None:
    """One token and a few are exact: 2560 columns leave 64 for TL2's pairs."""
    entry = next(e for e in PEERS["bitnet.cpp"] if e.variant == variant)
    module = bitnet_lookup if entry.module.endswith("bitnet_lookup") else bitnet_cpp
    try:
        *_, (part,) = module.create(options(tmp_path, "640x2560", variant, n=(1, 3)))
    except Missing as e:
        pytest.skip(str(e))
    for case in part.cases:
        ok, how = part.check(case)
        assert ok, how


@needs_checkout
@pytest.mark.parametrize(("variant", "bytes"), [("TL1", 64 * 128 / 4), ("TL2", 64 * (20 + 8))])
def test_a_checkouts_generator_and_converter(variant: str, bytes: float, tmp_path: Path) -> None:
    """Those of both variants run on any machine; TL2's array is padded."""
    named = Path(os.environ[bitnet_cpp.VARIABLE])
    shape = (64, 128)
    tile = bitnet_lookup.VARIANTS[variant].tile(*shape)
    assert tile is not None
    source = named / bitnet_lookup.generator(variant)
    header = bitnet_lookup.generate(variant, tmp_path, source, {shape: tile})
    assert f"BM64_128 {tile.BM}" in header.read_text()
    pack = bitnet_lookup.packer(variant, named / bitnet_lookup.CONVERTER)
    old = Path.cwd()
    os.chdir(tmp_path)
    try:
        packed = pack(np.ones(shape, np.float32))
    finally:
        os.chdir(old)
    assert packed.size >= bytes
    assert variant == "TL2" or packed.size == bytes
