"""Energy from RAPL, Intel's and AMD's running counters, as Linux shows them in /sys/class/powercap.

A zone intel-rapl:N is a package, and intel-rapl:N:M is a part of it: cores, graphics, or the
memory, which the package's counter leaves out. The sum here is that of packages and memories; it
includes all processes, and what the hardware takes when idle. The same package may appear again as
intel-rapl-mmio:N, and the whole board as psys; they are not added.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOT_AVAILABLE", "POWERCAP", "Rapl"]

POWERCAP = Path("/sys/class/powercap")
NOT_AVAILABLE = "not available on this machine"


@dataclass(frozen=True)
class _Zone:
    name: str
    counter: Path  # microjoules so far
    range_uj: int  # the counter goes back to 0 after this


class Rapl:
    """The energy counters of a machine, if it shows them.

    status: which zones are summed, or why there are none.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones: list[_Zone] = []
        refused: list[Path] = []
        for folder in sorted(root.glob("intel-rapl:*")):
            zone = _zone(folder)
            if zone is None:
                continue
            try:
                int(zone.counter.read_text())
            except PermissionError:
                refused.append(zone.counter)
            except (OSError, ValueError):
                continue
            else:
                self._zones.append(zone)
        if refused:  # the sum of some counters would be wrong
            self._zones = []
            self.status = f"{refused[0]} may not be read; run as root, or let it be readable"
        elif any(zone.name.startswith("package") for zone in self._zones):
            self.status = "RAPL: " + ", ".join(zone.name for zone in self._zones)
        else:
            self._zones = []
            self.status = NOT_AVAILABLE

    @property
    def available(self) -> bool:
        """Whether `joules` has a value."""
        return bool(self._zones)

    def sample(self) -> tuple[int, ...]:
        """Read the counters; empty if there are none, or if one has disappeared."""
        try:
            return tuple(int(zone.counter.read_text()) for zone in self._zones)
        except (OSError, ValueError):
            return ()

    def joules(self, begin: tuple[int, ...], end: tuple[int, ...]) -> float | None:
        """Return the energy between two samples in joules; None without counters.

        A counter may have gone back to 0 once in between. At 200 W a range of 2^32 units of 61 uJ
        lasts 20 minutes.
        """
        if not self._zones or not len(begin) == len(end) == len(self._zones):
            return None
        spent = 0
        for zone, a, b in zip(self._zones, begin, end, strict=True):
            spent += b - a if b >= a else b - a + zone.range_uj
        return spent * 1e-6


def _zone(folder: Path) -> _Zone | None:
    """Open a package's or a memory's zone; None for other zones and other folders."""
    if not re.fullmatch(r"intel-rapl:\d+(:\d+)?", folder.name):
        return None
    try:
        name = (folder / "name").read_text().strip()
        range_uj = int((folder / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        return None
    part = folder.name.count(":") == 2
    if name != "dram" if part else not name.startswith("package"):
        return None
    package = folder.name.split(":")[1]
    return _Zone(f"dram-{package}" if part else name, folder / "energy_uj", range_uj)
