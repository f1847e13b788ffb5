"""The output of benchmark commands: tables, Markdown, CSV, JSON, pictures; errors of one line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import command, failed

from sterna import _native
from sterna.bench import plots, report

pytestmark = pytest.mark.usefixtures("little_bandwidth")


def test_cells_are_short() -> None:
    values = [None, float("nan"), 0.0, 0.1234, 12.34, 123.4, 12345.6, 1234567, "a", 3]
    expected = ["", "", "0", "0.12", "12.3", "123", "12,346", "1,234,567", "a", "3"]
    assert [report.cell(value) for value in values] == expected


def test_markdown() -> None:
    rows = [report.with_range({"a": "x|y", "t": 1.5, "t_min": 1.25, "t_max": None}, "t")]
    rows.append(report.with_range({"a": None, "t": 2.0, "t_min": 1.0, "t_max": 3.0}, "t"))
    assert report.to_markdown(rows, {"a": "A", "t": "T", "t_range": "range"}) == (
        "| A | T | range |\n| --- | --: | --- |\n"
        "| x\\|y | 1.50 | 1.25 to  |\n|  | 2.00 | 1.00 to 3.00 |\n"
    )


def test_no_rows() -> None:
    assert report.to_csv([]) == ""
    assert report.to_markdown([], {"a": "A"}) == "| A |\n| --- |\n"


COMMANDS = {
    "gemv": "bench gemv --shapes 64x64,tiny --formats i2,f32 --threads 1 --repeat 1",
    "gemm": "bench gemm --shapes 64x64,tiny --formats i2,f32 --n 2,4 --threads 1 --repeat 1",
    "roofline": "roofline --shape 64x64 --formats i2,f32 --threads 1 --repeat 1",
    "e2e": "bench e2e --model random:tiny --pp 8 --tg 2 --batch 1,2 --threads 1 --repeat 1",
}


def arguments(name: str, *more: str) -> Iterator[str]:
    yield from COMMANDS[name].split()
    if name != "e2e":
        yield from ("--working-set", "1")
    yield from more


@pytest.mark.parametrize("name", COMMANDS)
def test_outputs(name: str) -> None:
    """One array of rows; the same rows as CSV; tables with their headings."""
    rows = json.loads(command(*arguments(name, "--json")).stdout)
    assert rows
    assert len({tuple(row) for row in rows}) == 1
    assert json.loads(command(*arguments(name, "--output", "json")).stdout)
    lines = list(csv.DictReader(io.StringIO(command(*arguments(name, "--csv")).stdout)))
    assert [list(line) for line in lines] == [list(row) for row in rows]
    assert lines[0]["threads"] == "1"
    text = command(*arguments(name, "--markdown")).stdout.splitlines()
    assert len(text) == len(rows) + 2
    assert len({line.replace("\\|", "").count("|") for line in text}) == 1
    table = command(*arguments(name)).stdout
    assert "GB/s" in table
    assert "of " in table
    assert "…" not in table  # nothing is cut


def test_one_output_at_a_time() -> None:
    failed(command(*arguments("gemv", "--json", "--csv")), "output", "several")
    failed(command(*arguments("gemv", "--json", "--output", "csv")), "output")
    assert command(*arguments("gemv", "--json", "--output", "json")).exit_code == 0


def test_errors_are_one_line() -> None:
    failed(command("bench", "gemv", "--threads", "0"), "threads", "1..1024")
    failed(command("bench", "gemv", "--threads", ","), "--threads", "got none")
    failed(command("bench", "gemv", "--formats", ","), "--formats", "got none")
    failed(command("bench", "gemm", "--n", "a"), "--n", "whole numbers")
    failed(command("bench", "gemv", "--shapes", "huge"), "huge", "bitnet-2b")
    failed(command("bench", "e2e", "--model", "random:tiny", "--batch", "0"), "at least 1")
    failed(command("roofline", "--isa", "abacus"), "abacus")


@pytest.mark.parametrize(
    "arguments",
    [
        "formats --shape 64x160 --no-measure --json",
        "bench gemv --thorough --shapes 64x160 --working-set 1 --threads 1 --repeat 1 --json",
        "roofline --shape 64x160 --working-set 1 --threads 1 --repeat 1 --json",
    ],
)
def test_formats_left_out_are_said(arguments: str) -> None:
    """A format whose blocks do not fit K is an error if asked for, otherwise a line on stderr."""
    result = command(*arguments.split())
    assert {row.get("format") for row in json.loads(result.stdout)} >= {"i2", "q4_0"}
    lines = result.stderr.splitlines()
    assert "sterna: 64x160: left out q1_0, pq2_0: K must be a multiple of 128" in lines
    (k_quants,) = [line for line in lines if line.endswith("K must be a multiple of 256")]
    assert "q4_k" in k_quants
    assert len(lines) == 3  # and 64
    failed(command(*arguments.split(), "--formats", "all,q4_k"), "q4_k", "multiple of 256")
    asked = command(*arguments.split(), "--formats", "i2")
    assert asked.exit_code == 0
    assert asked.stderr == ""


# ------------------------------------------------------------------------------- pictures

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("name", ["gemv", "gemm", "roofline"])
def test_pictures(name: str, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    result = command(*arguments(name, "--plot", str(file)))
    assert result.exit_code == 0, result.output
    data = file.read_bytes()
    assert data.startswith(PNG)
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert width >= 800
    assert height >= 600
    assert len(data) > 10_000  # not empty paper


def test_no_matplotlib_is_said_before_measuring(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setattr(_native, "bandwidth_gb_s", lambda *_: pytest.fail("measures"))
    for name in ("gemv", "roofline"):
        result = command(*arguments(name, "--plot", str(tmp_path / "a.png")))
        failed(result, "matplotlib", "pip install 'sterna[bench]'")


def test_a_picture_has_a_place(tmp_path: Path) -> None:
    failed(command(*arguments("gemv", "--plot", str(tmp_path / "a.pdf"))), ".png")
    failed(command(*arguments("gemv", "--plot", str(tmp_path / "none" / "a.png"))), "folder")
    plots.require(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())  # nothing is left of the attempt
    (tmp_path / "a.png").write_text("x")
    plots.require(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "x"


@pytest.mark.parametrize("name", ["gemv", "roofline"])
def test_a_place_for_no_files_is_said_before_measuring(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "bandwidth_gb_s", lambda *_: pytest.fail("measures"))
    long = tmp_path / f"{'a' * 300}.png"  # no file system of today has such names
    failed(command(*arguments(name, "--plot", str(long))), "must be writable", "too long")
