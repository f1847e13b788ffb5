"""bitnet.cpp as a peer, with kernels written here that have its own names and layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sterna_papers.peers import bitnet_cpp
from sterna_papers.peers.case import Case, Missing, Options

KERNELS = Path(__file__).with_name("bitnet_kernels.cpp")
CONFIG = "#define ACT_PARALLEL\n#define PARALLEL_SIZE 4\n"


def options(variant: str, scratch: Path, shape: str = "36x256") -> Options:
    return Options(
        shape=shape, variant=variant, threads=2, pp=(), tg=(), n=(1, 7, 130), scratch=str(scratch)
    )


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "BitNet"
    for name, text in (
        (bitnet_cpp.KERNELS, KERNELS.read_text()),
        ("include/gemm-config.h", CONFIG),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    monkeypatch.setenv(bitnet_cpp.VARIABLE, str(folder))
    return folder


@pytest.mark.parametrize("variant", bitnet_cpp.ROWS)
def test_all_rows_and_tokens(variant: str, checkout: Path, tmp_path: Path) -> None:
    """Threads share rows in fours, and tokens come in fours and alone."""
    version, kind, head, (part,) = bitnet_cpp.create(options(variant, tmp_path))
    assert (version, kind, head) == ("unknown", variant, None)
    assert [case.n for case in part.cases] == ([1, 7, 130] if variant == "I2_S" else [1])
    for case in part.cases:
        ok, how = part.check(case)
        assert ok, how
        assert part.weight_bytes(case) == 36 * 256 / 4


def test_an_output_that_is_wrong_shows(checkout: Path, tmp_path: Path) -> None:
    path = checkout / bitnet_cpp.KERNELS
    path.write_text(path.read_text().replace("sum += (x", "sum += (k == 9) + (x"))
    *_, (part,) = bitnet_cpp.create(options("I2_S", tmp_path))
    ok, how = part.check(Case("gemm", 1, 36, 256))
    assert not ok
    assert "36 of 36 outputs differ" in how


def test_what_is_missing_is_said(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / bitnet_cpp.KERNELS).write_text("#error no such vectors")
    with pytest.raises(Missing, match=r"cannot be compiled.*no such vectors"):
        bitnet_cpp.create(options("I2_S", tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(Missing, match="set CXX"):
        bitnet_cpp.create(options("I2_S", tmp_path))
    (checkout / bitnet_cpp.KERNELS).unlink()
    with pytest.raises(Missing, match=r"has no src/ggml-bitnet-mad\.cpp"):
        bitnet_cpp.create(options("I2_S", tmp_path))
    monkeypatch.delenv(bitnet_cpp.VARIABLE)
    with pytest.raises(Missing, match="STERNA_BITNET_CPP"):
        bitnet_cpp.create(options("I2_S", tmp_path))
