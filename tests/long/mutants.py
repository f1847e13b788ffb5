"""Kernels that forget a field of their arguments: each must fail the self-check.

    python tests/long/mutants.py [--only TEXT] [--list]

Each use of a field in a kernel's source is a mutant: there it takes the value that the field has
where nobody asks for it (no bias, no window, the first row's scale). One driver has them all
(native/testing/core, built from a copy of the tree), and an environment variable says which
one is alive. It runs `avx512`, or `avx2` where the CPU lacks that, and `amx`, emulated if need be.
A mutant whose digests are those of the table survived. Prints what killed each. Uses that
change no bit are in NEUTRAL_USES, each with its reason. Exits with 1 if another one survived, or if
one of these was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NULL_FLOATS = "static_cast<const float*>(nullptr)"
#: What takes a field's place, by the field's name.
#: Fields that only say where results are, and those that change no bit, have no line.
INSTEAD = {
    "residual": NULL_FLOATS, "bias": NULL_FLOATS, "norm": NULL_FLOATS, "signs": NULL_FLOATS,
    "sinks": NULL_FLOATS, "slopes": NULL_FLOATS, "before": NULL_FLOATS, "step": NULL_FLOATS,
    "yq_low": "static_cast<int8_t*>(nullptr)",
    "turned": "static_cast<uint8_t*>(nullptr)",
    "window": "sterna::kNoWindow", "cap": "0.0f", "limit": "a.next", "next": "a.limit",
    "hadamard_block": "int64_t{0}", "group_k": "int64_t{0}", "norm_stride": "int64_t{0}",
    "ungated": "false", "signs_last": "false", "interleaved": "false", "fresh": "false",
    "first": "false", "linear": "false", "single": "false", "silu": "false", "decays_rows": "false",
    "adds": "false", "minima": "false", "strength": "1.0f", "skip": "0.0f", "zero_x2": "0",
    "least": "0.0f", "most": "__builtin_inff()",
}  # fmt: skip
#: Uses whose field has another type or another value than its name has elsewhere.
OF_FILE = {
    ("native/rowwise.h", "limit"): "__builtin_inff()",
    ("native/rowwise.h", "cap"): "1e30f",
    ("native/recurrence.h", "s.bias"): "0.0f",
    ("native/recurrence.h", "a.skip"): "a.x",
}
#: Uses that change no bit, by the text around them, and why.
NEUTRAL_USES = {
    ("native/attention/attention_integers.h", "if (!a.turned) prefetch_scales"): "only a prefetch",
    ("native/attention/attention.h", "keys = a.limit[a.rows - 1] - next;"):
        "only says which keys are prefetched",
    ("native/rowwise.h", "const bool copy = kNone && !a.norm &&"):
        "without it a copy is written, and the norm writes over it",
}  # fmt: skip
FOLDERS = ("native/linear", "native/matrix", "native/scales", "native/attention", "native")
#: What kernels include first: 0, or the number of the mutant that is alive.
ALIVE = """\
#pragma once
#include <cstdlib>
inline const int mutant_alive = [] {
    const char* number = getenv("STERNA_MUTANT");
    return number ? atoi(number) : 0;
}();
"""
#: CPU seconds that a mutant has, for some hang: emulated tiles take ten.
HANGS_CPU_S = 60


@dataclass(frozen=True)
class Mutant:
    """A use of a field: text[begin:end] of a file, and what takes its place."""

    number: int  # from 1 on
    path: str
    begin: int
    end: int
    instead: str
    where: str
    reason: str  # why it changes no bit; empty: it does


def uses(name: str, text: str) -> Iterator[tuple[int, int, str]]:
    """Find those in a file, and what takes their places."""
    owners = r"\b(a|args|s|a\.groups|a\.space|scales|groups)"
    for found in re.finditer(rf"{owners}\.({'|'.join(INSTEAD)})\b(?!\()", text):
        field = found[2]
        key = (name, found[0]) if (name, found[0]) in OF_FILE else (name, field)
        after = text[found.end() :].lstrip()
        if not after.startswith("=") or after.startswith("=="):
            yield found.start(), found.end(), OF_FILE.get(key, INSTEAD[field])
    if name.endswith("linear/output.h"):  # which unpacks them
        for found in re.finditer(r"(?<=if \()(residual|bias)(?=\))", text):
            yield found.start(), found.end(), NULL_FLOATS
        for found in re.finditer(r"f_mul\(sum, f_load\(a\.scale \+ row\)\)", text):
            yield found.start(), found.end(), "sum"


def mutants() -> list[Mutant]:
    """Find all of them."""
    all_of_them: list[Mutant] = []
    neutral = set(NEUTRAL_USES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.h")):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            for begin, end, instead in sorted(uses(name, text)):
                reason = ""
                for file, around in NEUTRAL_USES:
                    at = text.find(around) if file == name else -1
                    if 0 <= at <= begin < at + len(around):
                        reason = NEUTRAL_USES[file, around]
                        neutral.discard((file, around))
                line = text.count("\n", 0, begin) + 1
                where = f"{name}:{line}: {text[begin:end]} -> {instead}"
                number = len(all_of_them) + 1
                all_of_them.append(Mutant(number, name, begin, end, instead, where, reason))
    if neutral:
        raise SystemExit(f"{__file__}: NEUTRAL_USES has what no file has: {neutral}")
    return all_of_them


def with_mutants(text: str, of_file: list[Mutant]) -> str:
    """Return a file's text with all of its mutants, each behind its number."""
    for m in reversed(of_file):
        use = text[m.begin : m.end]
        chosen = f"(mutant_alive == {m.number} ? {m.instead} : {use})"
        text = text[: m.begin] + chosen + text[m.end :]
    return text


class Driver:
    """The driver of kernels with all mutants in it, and the digests that its units must have."""

    def __init__(self, work: Path, all_of_them: list[Mutant]) -> None:
        tree = work / "tree"
        for part in ("native", "cmake", "tests/foreign", "tests/emulator", "CMakeLists.txt"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / part, tree / part)
        of_files = defaultdict(list)
        for mutant in all_of_them:
            of_files[mutant.path].append(mutant)
        for path, of_file in of_files.items():
            (tree / path).write_text(with_mutants((tree / path).read_text(), of_file))
        (tree / "alive.h").write_text(ALIVE)
        wide = "avx512" if " avx512vbmi " in Path("/proc/cpuinfo").read_text() else "avx2"
        self.units = (wide, "amx")
        self.table = json.loads((ROOT / "src/sterna/calibration/kernel_digests.json").read_text())
        self.program = tree / "build/core_test"
        self.env = os.environ | {"LD_PRELOAD": str(work / "emulator.so")}
        isas = ";".join(dict.fromkeys(("scalar", "avx512", *self.units)))
        options = [
            *["-DSTERNA_DRIVER=ON", f"-DSTERNA_ISAS={isas}", "-DCMAKE_BUILD_TYPE=Release"],
            f"-DCMAKE_CXX_FLAGS=-include {tree}/alive.h",
            *["-DSTERNA_EMULATE=ON"] * (wide == "avx2"),
        ]
        for command in (
            ["c++", "-std=c++20", "-O3", "-march=native", "-shared", "-fPIC",
             tree / "tests/emulator/emulator.cpp", "-o", work / "emulator.so"],
            ["cmake", "-G", "Ninja", "-S", tree, "-B", self.program.parent, *options],
            ["cmake", "--build", self.program.parent, "-j", str(os.cpu_count() or 1)],
        ):  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"the tree with its mutants does not compile: {done.stdout}")

    def killed(self, number: int) -> str:
        """Return what kills a mutant, by unit and group of results; empty if nothing does."""
        env = self.env | {"STERNA_MUTANT": str(number)}
        for unit in self.units:
            done = subprocess.run(
                [self.program, unit, "--digests"], capture_output=True, text=True, env=env,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (HANGS_CPU_S,) * 2),
            )  # fmt: skip
            if done.returncode:
                return f"{unit}: it ended with {done.returncode}"
            found = {line[17:]: line[:16] for line in done.stdout.splitlines()}
            wrong = [group for group in found if self.table.get(group) != found[group]]
            if wrong:
                return f"{unit}: {wrong[0]}" + f" and {len(wrong) - 1} more" * (len(wrong) > 1)
        return ""


def main() -> int:
    """Run the mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose path and text have this")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    all_of_them = mutants()
    chosen = [m for m in all_of_them if arguments.only in m.where]
    if arguments.list:
        print(*(m.where for m in chosen), sep="\n")
        return 0
    ends: dict[str, list[str]] = {"killed": [], "neutral": [], "survived": [], "not neutral": []}
    with tempfile.TemporaryDirectory() as work:
        driver = Driver(Path(work), all_of_them)
        if killed := driver.killed(0):
            raise SystemExit(f"the tree without a mutant fails: {killed}")
        for m in chosen:
            killed = driver.killed(m.number)
            end = ("not neutral" if killed else "neutral") if m.reason else ""
            end = end or ("killed" if killed else "survived")
            ends[end].append(m.where)
            print(f"{m.where}: {end}: {killed or m.reason or 'no digest changed'}", flush=True)
    print(", ".join(f"{len(those)} {end}" for end, those in ends.items()))
    for end in ("survived", "not neutral"):
        for where in ends[end]:
            print(f"{end}: {where}")
    return 1 if ends["survived"] or ends["not neutral"] else 0


if __name__ == "__main__":
    sys.exit(main())
