"""The arithmetic of a token on many threads: its bounds, and the table of the page."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from helpers import failure

from sterna import formats
from sterna.bench.random_codes import packed_bytes
from sterna.bench.shapes import SHAPES
from sterna.errors import RequestError
from sterna_papers import scaling
from sterna_papers.scaling import EPYC_9R14, XEON_8488C, Machine, token

PAGE = Path(__file__).parents[2] / "docs/measurements/expected.md"
ENDLESS = {"i2": 1e9, "t5": 1e9, "i8": 1e9}
SHAPE = SHAPES["bitnet-2b"]
HEAD_BYTES = packed_bytes(formats.get("i8"), SHAPE.vocab, SHAPE.hidden)


def test_memory_binds_one_thread() -> None:
    """All bytes at the speed of one core, the work of one thread, and no barrier."""
    machine = Machine(4, 1, 100.0, 10.0, 3.0, ENDLESS)
    nbytes = SHAPE.layer_bytes("i2") + HEAD_BYTES + 128 * SHAPE.kv_bytes("i16")
    made = token(machine, "bitnet-2b", "i2", 1)
    assert made.read_s == pytest.approx(nbytes / 10e9, rel=1e-6)
    assert made.alone_s == pytest.approx(30 * scaling.LAYER_S + scaling.STEP_S)
    assert made.barriers_s == 0
    assert made.tok_s == pytest.approx(1 / (made.read_s + made.alone_s))


def test_a_node_saturates() -> None:
    """More threads than its memory serves read no faster; a second node does."""
    machine = Machine(40, 1, 40.0, 10.0, 3.0, ENDLESS)
    four, eight = (token(machine, "bitnet-2b", "i2", n) for n in (4, 8))
    assert eight.read_s == pytest.approx(four.read_s, rel=0.01)
    assert eight.barriers_s == 2 * four.barriers_s
    assert token(machine, "bitnet-2b", "i2", 8, 2).read_s == pytest.approx(four.read_s / 2, rel=0.1)
    far = token(machine, "bitnet-2b", "i2", 8, 2).barriers_s
    assert far == pytest.approx(eight.barriers_s * (1 + scaling.BETWEEN_NODES) / 2)


def test_cores_bind() -> None:
    """Bytes a cycle; the two threads of a core share them."""
    machine = Machine(2, 2, 1e9, 1e9, 2.0, {"i2": 1.0, "i8": 1.0})
    nbytes = SHAPE.layer_bytes("i2") + HEAD_BYTES
    two, four = (token(machine, "bitnet-2b", "i2", n) for n in (2, 4))
    assert two.read_s == pytest.approx(nbytes / 4e9, rel=0.01)
    assert four.read_s == pytest.approx(two.read_s, rel=0.01)


def test_tiles_are_whole() -> None:
    """2,560 rows are 40 tiles, so threads beyond 40 have nothing of o and down."""
    machine = Machine(96, 1, 1e9, 1.0, 3.0, ENDLESS)
    tile = {name: formats.get("i2").n_tiles(M) for name, (M, _) in SHAPE.matrices().items()}
    assert tile == {"qkv": 60, "o": 40, "gate_up": 216, "down": 40}
    reads = {n: token(machine, "bitnet-2b", "i2", n, positions=0).read_s for n in (40, 54, 59)}
    assert reads[54] < reads[40]  # gate_up: four tiles a thread, not six
    least = SHAPE.layers * sum(2560 * K // 4 for K in (2560, 6912)) / 40 / 1e9
    assert reads[59] > least


def test_the_pages_table() -> None:
    """Every row of the page is what the module computes."""
    section = PAGE.read_text().split("## From 1 to 96 threads")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", section, re.MULTILINE)
    assert [int(n) for n, _ in rows] == [1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96]
    columns = [
        *((XEON_8488C, "i2", nodes) for nodes in (1, 2, 4)),
        (XEON_8488C, "i8", 1),
        *((EPYC_9R14, "i2", nodes) for nodes in (1, 2, 4)),
        (EPYC_9R14, "i8", 1),
    ]
    for n, cells in rows:
        threads = int(n)
        expected = [
            f"{token(machine, 'bitnet-2b', name, threads, nodes).tok_s:.0f}"
            for machine, name, nodes in columns
            if threads >= nodes
        ]
        assert [cell.strip() for cell in cells.split("|") if cell.strip()] == expected, n


def test_errors() -> None:
    for arguments, words in (
        ((XEON_8488C, "bitnet-2b", "i2", 97), ("threads", "1..96", "97")),
        ((XEON_8488C, "bitnet-2b", "i2", 1, 2), ("threads", "2..192", "1")),
        ((XEON_8488C, "bitnet-2b", "i2", 1, 0), ("threads",)),
        ((XEON_8488C, "bitnet-2b", "q4_0", 1), ("format", "q4_0")),
        ((XEON_8488C, "huge", "i2", 1), ("huge",)),
    ):
        failure(partial(token, *arguments), RequestError, *words)
