"""Made-up machines: a file tree with what sysfs, procfs and cgroups would say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sterna import _native

CPUS = "sys/devices/system/cpu"


class Tree:
    """A file tree in the place of /."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str | bytes) -> Tree:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self

    def cpu(self, cpu: int, siblings: str | None = None, **values: object) -> Tree:
        """A logical CPU; values: a file's name, with __ for /, and what it holds."""
        (self.root / CPUS / f"cpu{cpu}").mkdir(parents=True, exist_ok=True)
        if siblings is not None:
            self.write(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
        for name, value in values.items():
            self.write(f"{CPUS}/cpu{cpu}/{name.replace('__', '/')}", f"{value}\n")
        return self

    def read(self, allowed: list[int]) -> Any:
        return _native.topology(str(self.root), allowed)


def intel_hybrid(tree: Tree) -> Tree:
    """4 performance cores of 2 threads each (0-7), 4 efficiency cores (8-11), 2 slower ones."""
    for cpu in range(8):
        tree.cpu(cpu, f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}")
    for cpu in range(8, 14):
        tree.cpu(cpu, str(cpu))
    tree.write("sys/devices/cpu_core/cpus", "0-7\n")
    return tree.write("sys/devices/cpu_atom/cpus", "8-11\n")


def quota(tree: Tree, files: dict[str, str], group: str = "/a/b") -> float:
    tree.write("proc/self/mountinfo", "9 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n")
    tree.write("proc/self/cgroup", f"0::{group}\n")
    for path, text in files.items():
        tree.write(f"cg{path}/cpu.max", text)
    return float(tree.read([0])["cpu_quota"])
