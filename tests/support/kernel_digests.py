"""The digests of kernels that come with the package, and that `sterna info --check` compares.

    python tests/support/kernel_digests.py --replace

Run it after a change of bits that is meant, or of native/selfcheck, with the package installed. The
scalar unit says what all units compute. Each fast arithmetic needs its unit, or the emulator
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
    tables = [expected()]
    tables += [_native.unit_digests(isa)[0] for isa in _native.isas() if _native.fast_layouts(isa)]
    digests, _ = _native.unit_digests("scalar")
    for table in tables:
        digests |= {group: d for group, d in table.items() if group.startswith("fast ")}
    return digests


if __name__ == "__main__":
    found = computed()
    if sys.argv[1:] == ["--replace"]:
        rows = {group: f"{digest:016x}" for group, digest in found.items()}
        TABLE.write_text(json.dumps(rows, indent=1) + "\n")
    table = expected()
    differ = [group for group in found | table if found.get(group) != table.get(group)]
    print(f"{len(found)} groups, {len(differ)} differ", *sorted(differ), sep="\n")
