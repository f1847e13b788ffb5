"""The digests of kernels that come with the package, and that `sterna info --check` compares.

    python tests/support/kernel_digests.py --replace

Run it after a change of bits that is meant, or of native/selfcheck, with the package installed. The
scalar unit says what all units compute. The fast arithmetic needs a matrix unit, or the emulator
(tests/emulator/emulator.cpp says how); without either its digests stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sterna import _native
from sterna.calibration.unit_check import expected

TABLE = Path(__file__).parents[2] / "src/sterna/calibration/kernel_digests.json"


def computed() -> dict[str, int]:
    """The digests that this machine's units compute: scalar's, and those of fast arithmetic."""
    isas = _native.isas()
    digests, _ = _native.unit_digests("scalar")
    units = [isa for isa in isas if _native.fast_layouts(isa)]
    of_unit = _native.unit_digests(units[-1])[0] if units else expected()
    return digests | {group: d for group, d in of_unit.items() if group.startswith("fast ")}


if __name__ == "__main__":
    found = computed()
    if sys.argv[1:] == ["--replace"]:
        rows = {group: f"{digest:016x}" for group, digest in found.items()}
        TABLE.write_text(json.dumps(rows, indent=1) + "\n")
    table = expected()
    differ = [group for group in found | table if found.get(group) != table.get(group)]
    print(f"{len(found)} groups, {len(differ)} differ", *sorted(differ), sep="\n")
