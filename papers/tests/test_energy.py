"""Energy from made-up trees of counters: what is summed, what wraps, what may not be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sysfs_tree import Tree

from sterna_papers.energy import NOT_AVAILABLE, Rapl

CAP = "sys/class/powercap"


def zone(tree: Tree, name: str, kind: str, energy: object, limit: object = 1000) -> None:
    """A zone of powercap with a counter of microjoules."""
    for file, value in (("name", kind), ("energy_uj", energy), ("max_energy_range_uj", limit)):
        tree.write(f"{CAP}/{name}/{file}", f"{value}\n")


def test_energy_of_packages_and_memory(tree: Tree) -> None:
    """Two sockets and their memory; cores, the board and the second way to a package are not
    counted again.
    """
    zone(tree, "intel-rapl:0", "package-0", 100)
    zone(tree, "intel-rapl:0:0", "core", 1)
    zone(tree, "intel-rapl:0:1", "dram", 50)
    zone(tree, "intel-rapl:1", "package-1", 200)
    zone(tree, "intel-rapl:2", "psys", 7)
    zone(tree, "intel-rapl-mmio:0", "package-0", 100)
    rapl = Rapl(tree.root / CAP)
    assert rapl.available
    assert rapl.status == "RAPL: package-0, dram-0, package-1"
    begin = rapl.sample()
    assert begin == (100, 50, 200)
    zone(tree, "intel-rapl:0", "package-0", 400)
    zone(tree, "intel-rapl:0:1", "dram", 60)
    zone(tree, "intel-rapl:1", "package-1", 150)  # back to 0 at 1000 in between
    assert rapl.joules(begin, rapl.sample()) == pytest.approx((300 + 10 + 950) * 1e-6)
    (tree.root / CAP / "intel-rapl:1" / "energy_uj").unlink()
    assert rapl.sample() == ()
    assert rapl.joules(begin, rapl.sample()) is None


def test_no_energy(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing there, damaged, no package, or not to be read by this user."""
    assert Rapl(tree.root / "none").status == NOT_AVAILABLE
    assert not Rapl(tree.root / "none").available
    assert Rapl(tree.root / "none").sample() == ()
    zone(tree, "intel-rapl:0", "package-0", "lots")
    zone(tree, "intel-rapl:1:0", "dram", 5)
    assert Rapl(tree.root / CAP).status == NOT_AVAILABLE
    zone(tree, "intel-rapl:0", "package-0", 5, "far")
    assert not Rapl(tree.root / CAP).available
    zone(tree, "intel-rapl:0", "package-0", 5)
    read = Path.read_text

    def refuse(path: Path, *args: Any, **more: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    rapl = Rapl(tree.root / CAP)
    assert not rapl.available
    assert "may not be read; run as root" in rapl.status
