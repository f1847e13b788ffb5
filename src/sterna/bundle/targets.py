"""What a bundle's program is for: a platform and a version of CPython."""

from __future__ import annotations

import sys
from typing import NamedTuple

from sterna.errors import RequestError, shown
from sterna.files.bundle_file import this_target

__all__ = ["PLATFORMS", "Target", "targets_of"]

#: Platforms -> what names them in wheels, and in the markers of requirements.
PLATFORMS: dict[str, dict[str, str]] = {
    "linux-x86_64": {"wheels": "manylinux", "sys_platform": "linux", "system": "Linux"},
    "linux-aarch64": {"wheels": "manylinux", "sys_platform": "linux", "system": "Linux"},
    "macos-arm64": {"wheels": "macosx", "sys_platform": "darwin", "system": "Darwin"},
    "macos-x86_64": {"wheels": "macosx", "sys_platform": "darwin", "system": "Darwin"},
    "windows-x86_64": {"wheels": "win_amd64", "sys_platform": "win32", "system": "Windows"},
}
#: Systems that wheels may ask for: as old as Sterna's own wheels do.
_GLIBC = (*((2, minor) for minor in range(5, 29)),)
_MACOS = ((10, 9), *((10, minor) for minor in range(10, 17)), (11, 0), (12, 0), (13, 0))


class Target(NamedTuple):
    """A platform of PLATFORMS, and a version of CPython such as 3.12."""

    platform: str
    python: str

    def __str__(self) -> str:
        """Return the name of the bundle's part, as `this_target` has it."""
        return f"{self.platform}-cp{self.python.replace('.', '')}"

    @property
    def is_this(self) -> bool:
        """Whether this process runs on it."""
        return str(self) == this_target()

    def wheel_platforms(self) -> list[str]:
        """Return the platform tags of wheels that run there."""
        arch = self.platform.partition("-")[2]
        kind = PLATFORMS[self.platform]["wheels"]
        if kind == "manylinux":
            tags = [f"manylinux_{major}_{minor}_{arch}" for major, minor in _GLIBC]
            return [*tags, f"manylinux2014_{arch}", f"linux_{arch}"]
        if kind == "macosx":
            return [
                f"macosx_{major}_{minor}_{a}"
                for major, minor in _MACOS
                for a in (arch, "universal2")
            ]
        return [kind]

    def marker_environment(self) -> dict[str, str]:
        """Return the values of markers in requirements (PEP 508) that differ from target to
        target."""
        names = PLATFORMS[self.platform]
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "sys_platform": names["sys_platform"],
            "platform_system": names["system"],
            "os_name": "nt" if names["sys_platform"] == "win32" else "posix",
            "platform_machine": self.platform.partition("-")[2],
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
        }


def targets_of(platforms: list[str] | None, pythons: list[str] | None) -> list[Target]:
    """Return each platform with each version of Python; None for this one's. RequestError."""
    here = this_target().rpartition("-")[0]
    chosen = [
        Target(platform, python)
        for platform in platforms or [here]
        for python in pythons or [f"{sys.version_info[0]}.{sys.version_info[1]}"]
    ]
    for target in chosen:
        if target.platform not in PLATFORMS:
            raise RequestError(
                f"platform: must be one of {', '.join(PLATFORMS)}, but got {shown(target.platform)}"
            )
        major, _, minor = target.python.partition(".")
        if major != "3" or not minor.isdecimal() or int(minor) < 11:
            raise RequestError(
                f"python-version: must be 3.11 or later, such as 3.12, but got "
                f"{shown(target.python)}"
            )
    return list(dict.fromkeys(chosen))
