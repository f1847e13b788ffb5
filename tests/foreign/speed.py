"""A model of the speed of kernel units, from their code alone: no machine runs them.

    python tests/foreign/speed.py BUILD            # compares with speed.json; exits with 1 if worse
    python tests/foreign/speed.py BUILD --write    # and writes what it found

BUILD is a folder of CMake, compiled by the compiler that speed.json names. Of each unit's hottest
loops it counts instructions, accesses to the stack and prefetches, and asks llvm-mca for cycles,
all for 64 bytes of weights (a panel: of bytes). The cycles are those of operands in L1 on LLVM's
model of a core: a loop that spills, or loses an instruction that does the work of two, is seen.
Memory is not, so a prefetch that a compiler drops shows in their count alone.
Needs llvm-objdump and llvm-mca 19.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("speed.json")
#: Worse by more than this fails. A stack access that was none before, or a prefetch less, always
#: does.
INSTRUCTIONS, CYCLES = 1.05, 1.10
#: LLVM's models of cores that have a unit, a narrow and a wide one. Its Cortex-A76 is that of a
#: Cortex-A57; Neoverse N1 has an A76's pipelines.
CORES = {
    "avx2": ("haswell", "znver3"),
    "avxvnni": ("alderlake",),
    "avxvnniint8": ("alderlake",),
    "avx512bw": ("skylake-avx512",),
    "avx512": ("icelake-server", "znver4"),
    "avx512bf16": ("sapphirerapids", "znver4"),
    "neon": ("neoverse-n1", "neoverse-v2"),
    "neon_i8mm": ("neoverse-n2", "neoverse-v2"),
}
LANES = {
    "avx2": 8,
    "avxvnni": 8,
    "avxvnniint8": 8,
    "avx512bw": 16,
    "avx512": 16,
    "avx512bf16": 16,
    "neon": 4,
    "neon_i8mm": 4,
}
#: What multiplies each lane's four bytes, or two bf16 there; and two rows of eight by two tokens,
#: which is twice that.
PRODUCT = re.compile(r"^(?:\{vex} )?(sdot|usdot|usmmla|vpdpb[us]sd|vpmaddubsw|vdpbf16ps)\b")
STACK = re.compile(r"\[sp\b|\(%rsp|\(%rbp")
#: What asks for lines of weights ahead, by the cache that they go to. Some kernels have a loop for
#: each cache; a compiler lets the loops share instructions.
PREFETCHES = {
    "l1_prefetches": re.compile(r"^(prefetcht0|prefetchnta|prfm pldl1)"),
    "l2_prefetches": re.compile(r"^(prefetcht[12]|prfm pldl2)"),
}


@dataclass(frozen=True)
class Loop:
    """A loop by its function (of which the one with most tokens counts), and its bits a weight."""

    family: str
    function: str
    bits: float
    tokens: int = 1


LOOPS = {
    "i2": Loop("few_bits", r"(tile_turn<b2, 1,|DirectSums<b2>::take_turn<1>)", 2),
    "t5": Loop(
        "few_bits", r"(tile_turn<t5(_signs)?, 1,|DirectSums<t5(_signs)?>::take_turn<1>)", 5 / 3
    ),
    "q4_0": Loop("more_bits", r"grouped_turns<(PairSums<)?b4[,>].*PlainGroups<[^()]*>, 1>", 4),
    "q8_0": Loop("more_bits", r"grouped_turns<(PairSums<)?b8[,>].*PlainGroups<[^()]*>, 1>", 8),
    "panel": Loop("few_bits", r"RowBlocks<PanelCodes<\d+>>::panel<\d+, 6>", 8, 6),
    # Of seven bytes of a panel four are multiplied.
    "joint": Loop("few_bits", r"add_joint<", 8 * 7 / 4, 4),
    # A product of two bf16 takes as many bytes as one of four bytes.
    "pairs": Loop("floats", r"(tile_turn<Bf16Pairs, 1,|DirectSums<Bf16Pairs>::take_turn<1>)", 8),
    "pairs_panel": Loop("floats", r"(FloatPanel<Bf16Pairs>|linear_bf16_pairs<)", 8, 6),
}


def tool(name: str) -> str:
    """Of the LLVM whose models the table is made with."""
    return f"{name}-19"


def output(*command: str, text: str | None = None) -> str:
    """The output of a command."""
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=True)
    return done.stdout


def functions(path: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Name and (address, instruction) of each function of an object."""
    code = output(tool("llvm-objdump"), "-d", "-C", "--no-show-raw-insn", str(path))
    for part in code.split("\n\n"):
        head, *lines = part.strip().split("\n")
        name = re.fullmatch(r"[0-9a-f]+ <(.*)>:", head)
        if name is None:
            continue
        body = []
        for line in lines:
            found = re.match(r"\s*([0-9a-f]+):\s+(.*)", line)
            if found is not None:
                instruction = re.sub(r"\s*(//|# |<).*", "", found[2].replace("\t", " ")).strip()
                body.append((int(found[1], 16), instruction))
        yield name[1].replace("(anonymous namespace)::", "").replace("> >", ">>"), body


def is_branch(instruction: str) -> bool:
    """Of both architectures."""
    return re.match(r"(j[a-z]+|b|b\.[a-z]+|cbn?z|tbn?z)\s", instruction) is not None


def inner_loops(body: list[tuple[int, str]]) -> Iterator[list[str]]:
    """Backward branches that hold no other."""
    at = {address: i for i, (address, _) in enumerate(body)}
    loops = []
    for i, (_, instruction) in enumerate(body):
        target = re.search(r"0x([0-9a-f]+)$", instruction)
        if is_branch(instruction) and target and at.get(int(target[1], 16), i + 1) <= i:
            loops.append((at[int(target[1], 16)], i))
    for begin, end in loops:
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in loops):
            yield [instruction for _, instruction in body[begin : end + 1]]


def products(loop: list[str]) -> int:
    """How often each lane's four bytes are multiplied."""
    found = [PRODUCT.match(instruction) for instruction in loop]
    return sum(1 + (product[1] == "usmmla") for product in found if product is not None)


def count(pattern: re.Pattern[str], loop: list[str]) -> int:
    """Of instructions in which the pattern is found."""
    return sum(pattern.search(instruction) is not None for instruction in loop)


def cycles(loop: list[str], core: str) -> float:
    """Of one round, on LLVM's model of a core."""
    triple = "aarch64" if core.startswith(("cortex", "neoverse")) else "x86_64"
    text = "\n".join(instruction for instruction in loop if not is_branch(instruction))
    rounds = 200
    said = output(
        tool("llvm-mca"), f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={rounds}", text=text
    )
    (total,) = re.findall(r"Total Cycles:\s+(\d+)", said)
    return int(total) / rounds


def modelled(unit: str, loop: Loop, folder: Path) -> dict[str, float] | None:
    """The cost of 64 bytes; None where the unit leaves the loop to the one that it extends."""
    (path,) = folder.glob(f"CMakeFiles/layouts_{unit}_{loop.family}.dir/**/*.o")
    found = [
        inner
        for name, body in functions(path)
        if re.search(loop.function, name)
        for inner in inner_loops(body)
    ]
    if not found:
        return None
    hottest = max(found, key=products)
    multiplying = [inner for inner in found if products(inner)]
    lines = products(hottest) * LANES[unit] * 4 * loop.bits / 8 / 64 / loop.tokens
    return {
        "instructions": round(len(hottest) / lines, 2),
        "stack": round(count(STACK, hottest) / lines, 2),
        **{
            name: round(max(count(pattern, inner) for inner in multiplying) / lines, 2)
            for name, pattern in PREFETCHES.items()
        },
        **{core: round(cycles(hottest, core) / lines, 2) for core in CORES[unit]},
    }


def compiler(path: Path) -> str:
    """As an object names it: "GCC 12"."""
    text = output(tool("llvm-readelf"), "-p", ".comment", str(path))
    found = re.search(r"(GCC|clang)\D*(?:\(.*?\) )?(?:version )?(\d+)\.", text)
    return f"{found[1]} {found[2]}" if found else "unknown"


def worse(old: dict[str, float], new: dict[str, float]) -> list[str]:
    """Loops that cost more than before, and prefetches that are gone."""
    found = []
    for what, value in new.items():
        most = old.get(what, value)
        if what in PREFETCHES:
            if value < most - 1e-9:
                found.append(f"{what} {most} -> {value}")
            continue
        if what != "stack":
            most *= INSTRUCTIONS if what == "instructions" else CYCLES
        if value > most + 1e-9:
            found.append(f"{what} {old[what]} -> {value}")
    return found


def main(arguments: list[str]) -> int:
    """0 unless a loop of the table costs more."""
    folder, writes = Path(arguments[0]), arguments[1:] == ["--write"]
    table = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    failed = 0
    for unit in CORES:
        objects = sorted(folder.glob(f"CMakeFiles/layouts_{unit}_*.dir/**/*.o"))
        if not objects:
            continue
        known, made_by = table.setdefault(unit, {}), compiler(objects[0])
        if not writes and known.get("compiler") != made_by:
            print(f"speed, {unit}: not compared, {made_by} is not {known.get('compiler')}")
            continue
        known["compiler"] = made_by
        for name, loop in LOOPS.items():
            costs = modelled(unit, loop, folder)
            bad = worse(known.get(name, {}), costs) if costs and not writes else []
            if bad:
                print(f"speed, {unit} {name}: {', '.join(bad)} for 64 bytes")
                failed = 1
            if costs:
                known[name] = costs if writes else known.get(name, costs)
        print(f"speed, {unit}: {sum(name in known for name in LOOPS)} loops, {made_by}")
    if writes:
        FILE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
