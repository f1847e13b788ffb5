"""The power-of-two kernels for RISC-V vectors, measured without such a machine.

Their source is compiled, the instructions of each kernel's loop are counted, and llvm-mca estimates
the loop's cycles. Nothing runs. The model is that of an out-of-order core with the data in its
cache. So it tells what a kernel costs a core, but not what smaller weights save in memory traffic.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.bench.machine import Known, Progress
from sterna.bench.report import significant
from sterna.errors import RequestError
from sterna_papers import pot
from sterna_papers.figures.pot_builds import NO_VECTORS, run_tool

__all__ = ["FIELDS", "VLENS", "run"]

Row = dict[str, Any]
VLENS = (128, 256, 512, 1024)
#: LLVM's model of a core with vectors.
MODEL = "sifive-p670"
#: Every row has them all; docs/measurements/power-of-two.md defines them.
FIELDS = (
    "row", "build", "kernel", "vlen", "model", "unroll", "instructions", "macs",
    "instructions_per_16", "cycles_per_16", "speedup", "skipped",
)  # fmt: skip
#: What a loop of the source is (native/pot/rvv.h): kernel, registers of a group, and the
#: instruction that adds a vector to a sum.
LOOPS = {
    "Added8": ("pot8", 4, "vfadd.vv"),
    "Added4": ("pot4", 8, "vfadd.vv"),
    "Fused<Powers8>": ("pot8-fma", 4, "vfmacc.vv"),
    "Fused<Powers4<m4>>": ("pot4-fma", 4, "vfmacc.vv"),
    "Multiplied<m1>": ("f32", 1, "vfmacc.vv"),
    "Multiplied<m4>": ("f32-m4", 4, "vfmacc.vv"),
}
#: The flags of Table 3, for any vector length and for one.
BUILDS = {"VLA": (), "VLS": ("-mrvv-vector-bits=zvl",)}


@dataclass
class _Instruction:
    address: int
    name: str
    operands: str

    @property
    def target(self) -> int | None:
        """The address that a branch goes to."""
        found = re.search(r"0x([0-9a-f]+) <", self.operands)
        return int(found[1], 16) if found and self.name[0] == "b" else None


def run(
    vlen: int = 256,
    *,
    compilers: Sequence[str] = ("clang++-19",),
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> list[Row]:
    """Return rows with FIELDS, of two kinds (the field `row`).

    There is a row "count" for each build and kernel, with the unrolling of the fewest cycles, and
    "build" for a build that cannot be compiled or counted, with the reason. Raises RequestError.
    """
    if vlen not in VLENS:
        raise RequestError(f"vlen: must be one of {', '.join(map(str, VLENS))}, but got {vlen}")
    rows: list[Row] = []
    known(lambda: _whole(rows))
    for compiler in dict.fromkeys(compilers):
        try:
            for how, flags in BUILDS.items():
                progress(f"compiling the kernels with {compiler}, {how}")
                rows += _counted(compiler, how, flags, vlen)
        except RequestError as error:
            rows.append({"row": "build", "build": compiler, "skipped": str(error)})
    return _whole(rows)


def _whole(rows: Sequence[Row]) -> list[Row]:
    """Give rows all fields, in order."""
    return [{name: row.get(name) for name in FIELDS} for row in rows]


def _counted(compiler: str, how: str, flags: Sequence[str], vlen: int) -> list[Row]:
    if "clang" not in compiler:
        raise RequestError("cannot compile for RISC-V with llvm-objdump's labels; clang++ can")
    tools = {name: _tool(name, compiler) for name in (compiler, "llvm-objdump", "llvm-mca")}
    with tempfile.TemporaryDirectory(prefix="sterna-pot-") as folder:
        made = str(Path(folder) / "kernels.o")
        run_tool(
            [
                tools[compiler], "--target=riscv64-linux-gnu", f"-march=rv64gcv_zvl{vlen}b",
                "-std=c++20", "-O3", "-ffast-math", "-mno-relax", "-w", *NO_VECTORS["clang"],
                *flags, "-c", str(pot.source() / "standalone.cpp"), "-o", made,
            ]
        )  # fmt: skip
        text = run_tool(
            [tools["llvm-objdump"], "-d", "-C", "--no-show-raw-insn", "--mattr=+v,+d,+c", made]
        )
    best: dict[str, Row] = {}
    for (kernel, group, add), (rows_of_a, vectors), body in _loops(text):
        steps = sum(one.name == add for one in body) // rows_of_a
        macs = steps * rows_of_a * group * vlen // 32
        cycles = _cycles(tools["llvm-mca"], body)
        row = {
            "row": "count",
            "build": f"{compiler}, {how}",
            "kernel": kernel,
            "vlen": vlen,
            "model": MODEL,
            "unroll": [rows_of_a, 1, vectors],
            "instructions": len(body),
            "macs": macs,
            "instructions_per_16": round(16 * len(body) / macs, 3),
            "cycles_per_16": round(16 * cycles / macs, 3),
        }
        if kernel not in best or row["cycles_per_16"] < best[kernel]["cycles_per_16"]:
            best[kernel] = row
    missing = {kernel for kernel, _, _ in LOOPS.values()} - best.keys()
    if missing:
        raise RequestError(f"loops of {', '.join(sorted(missing))} are not found in its code")
    for row in best.values():
        row["speedup"] = significant(best["f32"]["cycles_per_16"] / row["cycles_per_16"])
    return [best[kernel] for kernel, _, _ in LOOPS.values()]


def _tool(name: str, compiler: str) -> str:
    """Find a tool of the compiler's version, or else of any version."""
    suffix = compiler[len("clang++") :] if name != compiler else ""
    for candidate in dict.fromkeys((name + suffix, name)):
        if path := shutil.which(candidate):
            return path
    raise RequestError(f"needs {name + suffix}, which is not found")


def _loops(
    text: str,
) -> Iterator[tuple[tuple[str, int, str], tuple[int, int], list[_Instruction]]]:
    """Find the innermost loop with the most vector instructions in each function of LOOPS."""
    for part in re.split(r"^[0-9a-f]+ <", text, flags=re.MULTILINE)[1:]:
        plain = part.replace("(anonymous namespace)::", "")
        found = re.match(r"void rows<(.*), (\d), (\d)>\(", plain)
        if not found or found[1] not in LOOPS:
            continue
        code = [
            _Instruction(int(line[1], 16), line[2], line[3])
            for line in re.finditer(r"^\s+([0-9a-f]+):\s+(\S+)\s*(.*)$", part, re.MULTILINE)
        ]
        spans = [
            (one.target, one.address) for one in code if one.target and one.target <= one.address
        ]
        bodies = [
            [one for one in code if begin <= one.address <= end]
            for begin, end in spans
            if not any((begin, end) != (b, e) and begin <= b and e <= end for b, e in spans)
        ]
        body = max(bodies, key=lambda b: sum(one.name[0] == "v" for one in b), default=[])
        if sum(one.name == LOOPS[found[1]][2] for one in body):
            yield LOOPS[found[1]], (int(found[2]), int(found[3])), body


def _cycles(mca: str, body: Sequence[_Instruction]) -> float:
    """Estimate the cycles of one turn of a loop, as the mean of a hundred."""
    lines = [f"{one.name} {one.operands}" for one in body if one.target is None and one.name != "j"]
    turns = 100
    text = run_tool(
        [mca, "-mtriple=riscv64", "-mattr=+m,+a,+f,+d,+c,+v", f"-mcpu={MODEL}",
         f"-iterations={turns}"],
        "\n".join(lines),
    )  # fmt: skip
    found = re.search(r"Total Cycles:\s+(\d+)", text)
    assert found, text
    return int(found[1]) / turns
