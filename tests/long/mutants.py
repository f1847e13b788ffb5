"""Kernels that forget a field of their arguments: each must fail the self-check.

    python tests/long/mutants.py [--only TEXT] [--list]

Each use of a field in a kernel's source is replaced in turn by the value that the field has where
nobody asks for it (no bias, no window, the first row's scale). A copy of the tree is built with
the mutant, and the driver (tests/foreign/kernels.cpp) runs `avx512`, or `avx2` where the CPU lacks
that, and `amx`, emulated if need be. A mutant whose digests are those of the table survived. Prints
each mutant and what killed it; exits with 1 if one survived.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NULL_FLOATS = "static_cast<const float*>(nullptr)"
#: What takes a field's place, by the name of the arguments' struct in a file and the field.
#: Fields that only say where results are, and those that change no bit, have no line.
NEUTRAL = {
    "residual": NULL_FLOATS, "bias": NULL_FLOATS, "norm": NULL_FLOATS, "signs": NULL_FLOATS,
    "sinks": NULL_FLOATS, "slopes": NULL_FLOATS, "before": NULL_FLOATS,
    "yq_low": "static_cast<int8_t*>(nullptr)",
    "turned": "static_cast<uint8_t*>(nullptr)",
    "window": "sterna::kNoWindow", "cap": "0.0f", "limit": "a.next", "next": "a.limit",
    "hadamard_block": "int64_t{0}", "group_k": "int64_t{0}", "norm_stride": "int64_t{0}",
    "ungated": "false", "signs_last": "false", "interleaved": "false", "fresh": "false",
    "first": "false", "single": "false", "silu": "false", "decays_rows": "false",
    "adds": "false", "minima": "false", "strength": "1.0f", "skip": "0.0f", "zero_x2": "0",
}  # fmt: skip
#: Uses whose field has another type or another neutral value than its name has elsewhere.
OF_FILE = {
    ("native/rowwise.h", "limit"): "__builtin_inff()",
    ("native/recurrence.h", "limit"): None,
    ("native/rowwise.h", "cap"): "1e30f",
    ("native/head/rescore.h", "norm"): None,  # outputs of a shadow
    ("native/attention/attention_timing.cpp", "limit"): None,
    ("native/recurrence.h", "s.bias"): "0.0f",
}
FOLDERS = ("native/linear", "native/matrix", "native/scales", "native/attention", "native")


@dataclass(frozen=True)
class Mutant:
    """A use of a field: text[begin:end] of a file, and what takes its place."""

    path: str
    begin: int
    end: int
    instead: str

    def line(self, text: str) -> int:
        """Return the number of the line that it is in."""
        return text.count("\n", 0, self.begin) + 1


def mutants() -> Iterator[Mutant]:
    """Find all of them; those of linear/output.h are uses of the names that it unpacks."""
    owners = r"\b(a|args|s|a\.groups|scales|groups)"
    use = re.compile(rf"{owners}\.({'|'.join(NEUTRAL)})\b(?!\()")
    unpacked = re.compile(
        r"(?<=if \()(residual|bias)(?=\))|f_mul\(sum, f_load\(a\.scale \+ row\)\)"
    )
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.h")):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            for found in use.finditer(text):
                field = found[2]
                key = (name, found[0]) if (name, found[0]) in OF_FILE else (name, field)
                instead = OF_FILE.get(key, NEUTRAL[field])
                after = text[found.end() :].lstrip()
                assigned = after.startswith("=") and not after.startswith("==")
                if instead and not assigned:
                    yield Mutant(name, found.start(), found.end(), instead)
            if name.endswith("linear/output.h"):
                for found in unpacked.finditer(text):
                    instead = "sum" if found[0].startswith("f_mul") else "false"
                    yield Mutant(name, found.start(), found.end(), instead)


def digests(driver: Path, unit: str, env: dict[str, str]) -> dict[str, str] | None:
    """Return a unit's digests; None if the driver failed or hangs."""
    command = [driver, unit, "--digests"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    return {line[17:]: line[:16] for line in done.stdout.splitlines()}


def build(tree: Path, options: Sequence[str] = ()) -> bool:
    """Build the driver in a copy of the tree; whether it compiled."""
    folder = tree / "build"
    if options:
        subprocess.run(["cmake", "-G", "Ninja", "-S", tree, "-B", folder, *options], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    done = subprocess.run(["cmake", "--build", folder], capture_output=True, text=True)
    return done.returncode == 0


def main() -> int:
    """Run the mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose path and text have this")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    table = json.loads((ROOT / "src/sterna/calibration/kernel_digests.json").read_text())
    wide = "avx512" if " avx512vbmi " in Path("/proc/cpuinfo").read_text() else "avx2"
    survivors, counts = [], {"killed": 0, "survived": 0, "not compiled": 0}
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        for part in ("native", "cmake", "tests/foreign", "tests/emulator", "CMakeLists.txt"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / part, tree / part)
        preload = Path(work) / "emulator.so"
        emulator = [
            *["c++", "-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-o"],
            preload,
        ]
        subprocess.run([*emulator, ROOT / "tests/emulator/emulator.cpp"], check=True)
        isas = "scalar;avx512;amx" if wide == "avx512" else "scalar;avx2;avx512;amx"
        options = ["-DSTERNA_DRIVER=ON", f"-DSTERNA_ISAS={isas}", "-DCMAKE_BUILD_TYPE=Release"]
        if wide == "avx2":
            options.append("-DSTERNA_EMULATE=ON")
        emulated = {**os.environ, "LD_PRELOAD": str(preload)}
        for mutant in [None, *mutants()]:
            if mutant is None:
                if arguments.list:
                    continue
                if not build(tree, options):
                    raise SystemExit("the tree itself does not compile")
                where = "the tree itself"
            else:
                text = (ROOT / mutant.path).read_text()
                use = text[mutant.begin : mutant.end]
                where = f"{mutant.path}:{mutant.line(text)}: {use} -> {mutant.instead}"
                if arguments.only not in where:
                    continue
                if arguments.list:
                    print(where)
                    continue
                changed = text[: mutant.begin] + mutant.instead + text[mutant.end :]
                (tree / mutant.path).write_text(changed)
                compiled = build(tree)
                (tree / mutant.path).write_text(text)
                if not compiled:
                    counts["not compiled"] += 1
                    print(f"{where}: does not compile", flush=True)
                    continue
            killed = ""
            for unit in (wide, "amx"):
                found = digests(tree / "build/kernels", unit, emulated)
                wrong = [g for g in found or {} if table.get(g) != found[g]]
                if found is None or wrong:
                    killed = f"{unit}, {wrong[0] if wrong else 'crashed'}"
                    break
            if mutant is None:
                if killed:
                    raise SystemExit(f"the tree itself fails: {killed}")
                continue
            counts["killed" if killed else "survived"] += 1
            if not killed:
                survivors.append(where)
            print(f"{where}: {f'killed by {killed}' if killed else 'SURVIVED'}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    print(*survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
