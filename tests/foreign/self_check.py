"""The self-check of units by the wheel itself, for one that is emulated: rows of JSON that
`tests/foreign/run --ran` reads, as `sterna info --check --json` prints.

    python tests/foreign/self_check.py HOW UNIT ...

Exits with 1 where one is wrong.
"""

from __future__ import annotations

import json
import sys
import time

from sterna.calibration.unit_check import check


def main(how: str, *units: str) -> int:
    """0 if all are right."""
    rows = []
    for isa in units:
        begin = time.perf_counter()
        wrong = check(isa)
        seconds = time.perf_counter() - begin
        rows.append({"isa": isa, "how": how, "wrong": wrong, "seconds": seconds})
    print(json.dumps(rows))
    return any(row["wrong"] for row in rows)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
