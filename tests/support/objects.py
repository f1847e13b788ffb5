"""The symbols that compiled objects export."""

from __future__ import annotations

import subprocess
from pathlib import Path


def exported_symbols(object_file: Path) -> list[str]:
    """Names that the linker sees outside the object, weak ones included."""
    out = subprocess.run(
        ["nm", "--extern-only", "--defined-only", "--format=posix", str(object_file)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [line.split()[0] for line in out.splitlines() if line]
