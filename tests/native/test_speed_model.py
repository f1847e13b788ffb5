"""The model of speed that `.ci/speed` checks: which loop it takes, and what it calls worse."""

from __future__ import annotations

import json

import pytest
import speed

#: A loop with one product, and one around it, as llvm-objdump prints them.
FUNCTION = """\
movi v0.4s, #0x0
ldr q1, [x0, #-0x40]
sdot v0.4s, v1.16b, v2.4b[0]
str q0, [sp, #16]
cmp x2, x3
b.lt 0x4
add x0, x0, #0x1
b.lt 0x0
ret""".splitlines()


def test_the_innermost_loop_is_taken() -> None:
    body = [(4 * i, instruction) for i, instruction in enumerate(FUNCTION)]
    (loop,) = speed.inner_loops(body)
    assert loop == FUNCTION[1:6]
    assert speed.products(loop) == 1
    assert [speed.STACK.search(i) is not None for i in loop] == [False, False, True, False, False]


def test_a_product_of_two_rows_counts_twice() -> None:
    assert speed.products(["usmmla v0.4s, v1.16b, v2.16b", "vpdpbusd %ymm0, %ymm1, %ymm2"]) == 3


@pytest.mark.parametrize(
    ("instruction", "cache"),
    [
        ("prefetcht0 0x1000(%rax)", "l1_prefetches"), ("prefetchnta (%rax)", "l1_prefetches"),
        ("prefetcht1 0x1000(%rax)", "l2_prefetches"), ("prfm pldl1keep, [x8]", "l1_prefetches"),
        ("prfm pldl2keep, [x8, #0x40]", "l2_prefetches"), ("vmovdqu (%rax), %ymm0", None),
    ],
)  # fmt: skip
def test_prefetches_by_cache(instruction: str, cache: str | None) -> None:
    counts = {
        name: speed.count(pattern, [instruction]) for name, pattern in speed.PREFETCHES.items()
    }
    assert counts == {name: int(name == cache) for name in speed.PREFETCHES}


@pytest.mark.parametrize(
    ("what", "value", "is_worse"),
    [
        ("l1_prefetches", 2.0, False), ("l1_prefetches", 1.0, False), ("l1_prefetches", 0.5, True),
        ("instructions", 42, False), ("instructions", 42.1, True), ("stack", 0.01, True),
        ("neoverse-v2", 8.8, False), ("neoverse-v2", 8.9, True), ("a core that is new", 99, False),
    ],
)  # fmt: skip
def test_what_is_worse(what: str, value: float, is_worse: bool) -> None:
    old = {"instructions": 40.0, "stack": 0.0, "l1_prefetches": 1.0, "neoverse-v2": 8.0}
    assert bool(speed.worse(old, {what: value})) is is_worse


def test_the_table_has_each_unit_that_the_model_knows() -> None:
    table = json.loads(speed.FILE.read_text(encoding="utf-8"))
    assert table.keys() == speed.CORES.keys() == speed.LANES.keys()
    for unit, loops in table.items():
        inlined = {"panel"} if loops["compiler"].startswith("clang") else set()
        few, many = ("pairs", "pairs_panel") if unit == "avx512bf16" else ("i2", "panel")
        assert {few, many} <= loops.keys() | inlined, unit
        assert loops[few]["l1_prefetches"] > 0, unit
