"""`sterna bench peers --table` and `--check`: rows, the section of a page, what differs from it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from waits import HANGS_S

from sterna.cli.bench import command
from sterna.errors import RequestError
from sterna_papers.peers import Entry, shares, shares_page
from sterna_papers.peers.case import Options
from sterna_papers.peers.libllama import built_for

MACHINE = "A CPU (family 6, model 1), avx2, 2 threads"
FAKE = """
from sterna_papers.peers.case import end_to_end

class Fake:
    def __init__(self, options):
        self.cases, self.slow = end_to_end(options), options.variant == "slow"

    def check(self, case):
        return not (self.slow and case.depth), "compared with nothing"

    def time(self, case):
        return 20.0 if self.slow else case.n / 50, True

    def weight_bytes(self, case):
        return None

def create(options):
    if options.variant == "missing":
        raise RuntimeError("no such library")
    return "7", options.variant, None, [Fake(options)]
"""


def row(**given: Any) -> dict[str, Any]:
    """A measured row of generation in t5."""
    base = {
        "class": MACHINE, "date": "2026-11-27", "model": "bitnet-2b", "format": "t5",
        "head": "int8", "test": "tg32", "sterna": 37.6, "ik_llama.cpp": None, "llama.cpp": 25.6,
        "times_best": 1.46875, "unit": "GB/s", "limit": 33.1, "limit_min": 32.5, "limit_max": 34.2,
        "share": 0.861, "share_min": 0.85, "share_max": 0.87, "repeat": 5,
        "versions": "sterna 0.1.0; llama.cpp 0.3.36, AVX2",
        "missing": "ik_llama.cpp: no llama-bench named",
    }  # fmt: skip
    return {**base, **given}


ROWS = [
    row(),
    row(test="pp512", sterna=186.0, unit="GOPS", limit=935.0, share=0.0437, limit_max=940.0),
    row(model="tinyllama-1.1b", format="q8_0", sterna=None, share=None, limit=None, unit=None),
]
SECTION = f"""\
## Shares on {MACHINE}

`sterna bench peers --table --output markdown`, 2026-11-27, medians of 5 rounds in turn, in
tokens/s; Sterna's head is int8. The limit of generation is the memory, and of a prompt the unit's
int8 dot products, each measured right before and after each of Sterna's runs. Memory gave 32.5 to
34.2 GB/s.

Versions: sterna 0.1.0; llama.cpp 0.3.36, AVX2.

Missing: ik_llama.cpp: no llama-bench named.

| model | format | test | Sterna | ik_llama.cpp | llama.cpp | × best | limit | share |
| --- | --- | --- | --: | --- | --: | --: | --- | --- |
| bitnet-2b | t5 | tg32 | 37.6 | – | 25.6 | 1.47 | 33.1 GB/s | 0.861 |
| bitnet-2b | t5 | pp512 | 186 | – | 25.6 | 1.47 | 935 GOPS | 0.044 |
| tinyllama-1.1b | q8_0 | tg32 | – | – | 25.6 | 1.47 | – | – |
"""
ROUNDS = "(0.850 to 0.870 in 5 rounds) of 33.1 GB/s"
OTHER = SECTION.replace("avx2", "avx512").replace("0.861", "0.5")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with the sections of two classes."""
    path = tmp_path / "speed.md"
    path.write_text(f"# Speed\n\n{OTHER}\n{SECTION}\n## After\n\n| share |\n|---|\n| 0.1 |\n")
    return path


def test_section() -> None:
    """Prose is wrapped, what is missing is a dash, small shares keep three decimals."""
    assert shares_page.section(ROWS) == SECTION


def test_a_page_is_read_as_it_was_written(page: Path) -> None:
    """Shares of the class's own section, and only rows that have one."""
    assert shares_page.shares_of(page, MACHINE) == {
        ("bitnet-2b", "t5", "tg32"): 0.861,
        ("bitnet-2b", "t5", "pp512"): 0.044,
    }
    with pytest.raises(RequestError, match=r"must have a section .* another CPU .* nothing was"):
        shares_page.shares_of(page, "another CPU")


def test_columns_may_stand_elsewhere(page: Path) -> None:
    """Somebody may add a column or leave one out."""
    text = f"## Shares on {MACHINE}\n\n|share | note|model|format|test|\n|--|--|--|--|--|\n"
    page.write_text(f"{text}|0.5|calm|a|b|c|\n")
    assert shares_page.shares_of(page, MACHINE) == {("a", "b", "c"): 0.5}


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        (0.8, 0.8, None), (0.8, 0.879, None), (0.8, 0.721, None), (0.5, 0.45, None),
        (0.8, 0.7, f"0.700 {ROUNDS}, but the page has 0.800, −12.5 %"),
        (0.8, 0.9, f"0.900 {ROUNDS}, but the page has 0.800, +12.5 %"),
        (0.8, None, "no share was measured, but the page has 0.800"),
    ],
)  # fmt: skip
def test_what_differs(was: float, now: float | None, says: str | None) -> None:
    """More than 10 % of what the page has, in either direction."""
    differ, alone = shares_page.differences([row(share=now)], {("bitnet-2b", "t5", "tg32"): was})
    assert differ == ([f"bitnet-2b t5 tg32: {says}"] if says else [])
    assert not alone


def test_a_row_that_a_page_lacks() -> None:
    assert shares_page.differences([row()], {("a", "b", "c"): 1}) == (
        [], ["bitnet-2b t5 tg32: the page has no such row"],
    )  # fmt: skip


def measured(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], *args: str) -> Any:
    """The command's result where measuring gives these rows."""
    monkeypatch.setattr(shares, "run", lambda *_, **__: rows)
    monkeypatch.setattr(shares, "machine_class", lambda *_: MACHINE)
    return CliRunner().invoke(command, ["peers", *args])


@pytest.mark.parametrize(
    ("rows", "code", "says"),
    [
        (ROWS[:2], 0, "OK {page}: 2 shares within 10 %\n"),
        (ROWS, 0, "UNCHECKED tinyllama-1.1b q8_0 tg32: the page has no such row\nOK {page}: 2"),
        (
            [row(share=0.7)],
            1,
            f"DIFFERS bitnet-2b t5 tg32: 0.700 {ROUNDS}, but",
        ),
        (ROWS[2:], 2, "UNCHECKED tinyllama-1.1b"),
    ],
)
def test_check(
    rows: list[dict[str, Any]], code: int, says: str, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit codes as of `sterna verify`."""
    result = measured(monkeypatch, rows, "--check", str(page))
    assert result.exit_code == code, result.output
    assert says.format(page=page) in result.stdout
    result = measured(monkeypatch, rows, "--check", str(page), "--json")
    assert json.loads(result.stdout) == [{**row, "others_share": 0.0} for row in rows]
    assert says.format(page=page) in result.stderr


def test_a_page_without_the_class_is_refused_before_measuring(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "run", lambda *_, **__: pytest.fail("it measured"))
    result = CliRunner().invoke(command, ["peers", "--check", str(page)])
    assert isinstance(result.exception, RequestError)
    assert "--table" in str(result.exception)


def test_the_table_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits 80 columns, and names the missing peers."""
    result = measured(monkeypatch, ROWS, "--table")
    head, *lines = result.stdout.splitlines()
    assert head == f"{MACHINE}; tokens/s, medians of 5 rounds"
    assert lines[1:3] == [
        "bitnet-2b",
        "t5      tg32     37.6             –       25.6    1.47  33.1 GB/s  0.861",
    ]
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "missing: ik_llama.cpp: no llama-bench named"
    assert measured(monkeypatch, ROWS, "--table", "--markdown").stdout == SECTION


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--shape", "tiny"], "--shape: the table has its own"),
        (["--pp", "64"], "--pp: the table has its own"),
        (["--thorough"], "--thorough: the table has its own"),
        (["--format", "i2"], "format: must be of t5, q4_0, q8_0, q4_k in the table, but got 'i2'"),
        (["--peers", "torch"], "peers: must be of ik_llama.cpp, llama.cpp, but got 'torch'"),
    ],
)
def test_what_the_table_does_not_take(args: list[str], says: str) -> None:
    result = CliRunner().invoke(command, ["peers", "--table", *args])
    assert says in result.output + str(result.exception)


def test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run of a small shape, with a peer that is slow, one that is fast and one missing."""
    (tmp_path / "fake_peer.py").write_text(FAKE)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    table = {
        "ik_llama.cpp": (Entry("ik_llama.cpp", "fake_peer", "missing"),),
        "llama.cpp": tuple(Entry("llama.cpp", "fake_peer", name) for name in ("slow", "fast")),
    }
    monkeypatch.setattr(shares, "TABLE", table)
    monkeypatch.setattr(shares, "GROUPS", (shares.Group("tiny", "t5", (0, 64)),))
    monkeypatch.setattr(shares, "PP", (8,))
    monkeypatch.setattr(shares, "TG", (3,))
    monkeypatch.setattr("sterna.calibration.bandwidth.BYTES", 1 << 22)
    given = Options(variant="", scratch="", threads=1, shape="", pp=(), tg=(), n=())
    rows = shares.run(given, repeat=3)
    assert [r["test"] for r in rows] == ["pp8", "tg3", "tg3@64"]
    assert [r["unit"] for r in rows] == ["GOPS", "GB/s", "GB/s"]
    for r in rows:
        assert 0 < r["share_min"] <= r["share"] <= r["share_max"]
        assert 0 < r["limit_min"] <= r["limit"] <= r["limit_max"]
        assert r["repeat"] == 3
        assert r["ik_llama.cpp"] is None
        assert r["llama.cpp"] == 50
        assert r["times_best"] == pytest.approx(r["sterna"] / 50, rel=1e-4)
        assert "ik_llama.cpp: RuntimeError: no such library" in r["missing"]
        assert "llama.cpp 7" in r["versions"]


def test_a_slow_peer_sits_out_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sterna does not."""
    (tmp_path / "fake_peer.py").write_text(FAKE)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    from sterna_papers.peers import results

    given = Options(variant="", scratch="", threads=1, shape="tiny", pp=(8,), tg=(), n=())
    table = {"slow": (Entry("slow", "fake_peer", "slow"),)}
    around: list[str] = []
    _, found = results(
        ["slow"],
        given,
        formats=("t5",),
        repeat=5,
        limit_s=HANGS_S,
        table=table,
        progress=lambda _: None,
        around=lambda case: around.append(case.what),
        patience_s=30,
    )
    assert [len(r.seconds) for r in found] == [5, 2]
    assert around == ["pp8"] * 10


def test_what_llama_cpp_was_built_for() -> None:
    said = b"CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 0 | REPACK = 1 | "
    assert built_for(said) == "AVX512"
    assert built_for(b"CPU : NEON = 1 | ARM_FMA = 1 | ") == "NEON"
    assert built_for(b"") == "plain C"
