"""The build backend: scikit-build-core, with zig as the C++ compiler where there is none.

`ziglang` on the package index is a whole clang with its headers and a linker. It is asked for only
where no compiler of C++20 is found, and when STERNA_ZIG=1 or STERNA_ZIG=GLIBC, such as 2.28, asks
for it: the latter builds for systems as old as that version of the C library.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036  # pip looks at requires-python after this
    raise SystemExit(f"sterna: needs Python 3.11 or later, but got {platform.python_version()}")

from scikit_build_core import build as base
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ZIG = "ziglang>=0.16"
PROBE = "#include <concepts>\n#include <span>\nint main() { return std::span<int>().size(); }\n"

if sys.platform == "win32":  # CMake takes Visual Studio, which calls no other compiler
    os.environ.setdefault("CMAKE_GENERATOR", "Ninja")

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Ask for zig, too, where no compiler is found."""
    _require_headers()
    asked = base.get_requires_for_build_wheel(config_settings)
    return [*asked, ZIG] if _by_zig() else [*asked]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel with the compiler that was found, or zig."""
    with _compiler():
        return base.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel; zig is used where it is installed, as that is not asked for."""
    with _compiler():
        return base.build_editable(wheel_directory, config_settings, metadata_directory)


@cache
def _by_zig() -> bool:
    """Whether zig compiles: asked for, or no other compiler is found. CXX is the user's choice."""
    if "STERNA_ZIG" in os.environ:
        return True
    return not os.environ.get("CXX") and not any(map(_compiles, ("c++", "g++", "clang++")))


def _compiles(compiler: str) -> bool:
    """Whether a compiler makes a program of C++20."""
    if sys.platform == "win32":  # kernels are written for GCC and clang
        return False
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(PROBE)
        call = [compiler, "-std=c++20", str(source), "-o", str(program)]
        try:
            return subprocess.run(call, capture_output=True).returncode == 0
        except OSError:
            return False


def _require_headers() -> None:
    """End the build where Python's headers are missing, with what has them."""
    include = sysconfig.get_path("include")
    if Path(include, "Python.h").is_file():
        return
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SystemExit(
        f"sterna: needs Python's headers ({include}/Python.h), which are not installed. "
        f"Debian, Ubuntu: apt install python{version}-dev; Fedora, RHEL: dnf install "
        f"python{version}-devel; Alpine: apk add python3-dev; openSUSE: zypper install "
        f"python{version.replace('.', '')}-devel"
    )


@contextlib.contextmanager
def _compiler() -> Iterator[None]:
    """Have CMake use zig, where it compiles."""
    if not _by_zig():
        yield
        return
    import ziglang

    zig = Path(ziglang.__file__).parent / ("zig.exe" if os.name == "nt" else "zig")
    # Named, a target means its plainest CPU: without it, zig compiles for the CPU of this machine.
    glibc = os.environ.get("STERNA_ZIG", "")
    target = _target(glibc if "." in glibc else "")
    tools = Path("build", "zig").absolute()
    tools.mkdir(parents=True, exist_ok=True)
    made = {
        "CMAKE_CXX_COMPILER": _tool(tools, "c++", f'"{zig}" c++ -target {target}{_more_headers()}'),
        "CMAKE_AR": _tool(tools, "ar", f'"{zig}" ar'),
        "CMAKE_RANLIB": _tool(tools, "ranlib", f'"{zig}" ranlib'),
    }
    if sys.platform == "win32":  # CMake's rules for clang on Windows ask for one
        made["CMAKE_RC_COMPILER"] = _tool(tools, "rc", f'"{zig}" rc')
    before = os.environ.get("CMAKE_ARGS")
    given = [f"-D{name}={path.as_posix()}" for name, path in made.items()]
    # The first program of each kind takes minutes, as zig compiles its C++ library for it: CMake's
    # questions are answered without linking, and so is that for the compiler's name (_tool).
    given.append("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    given.append(f"-DSTERNA_ZIG={version('ziglang')}")  # named in the wheel's list of contents
    os.environ["CMAKE_ARGS"] = shlex.join([*shlex.split(before or ""), *given])
    print(f"sterna: compiled by zig for {target}", flush=True)
    try:
        yield
    finally:
        del os.environ["CMAKE_ARGS"]
        if before is not None:
            os.environ["CMAKE_ARGS"] = before


def _target(glibc: str) -> str:
    """Return zig's name of this system."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if sys.platform == "win32":
        return f"{machine}-windows-gnu"
    if sys.platform == "darwin":
        return f"{machine}-macos.13.0"
    kind, installed = platform.libc_ver()
    if kind != "glibc":
        return f"{machine}-linux-musl"
    return f"{machine}-linux-gnu.{glibc or installed}"


def _more_headers() -> str:
    """Return zig's option for pyconfig.h, which Debian keeps in a folder of its own."""
    root = Path(sysconfig.get_path("include")).parent
    own = root / str(sysconfig.get_config_var("MULTIARCH"))
    return f' -idirafter "{root}"' if own.is_dir() else ""


def _tool(folder: Path, name: str, call: str) -> Path:
    """Write a script that makes one program of a subcommand of zig.

    CMake compiles and links a file to learn the compiler's name; an object tells it as well.
    """
    if os.name == "nt":
        path, text = folder / f"{name}.cmd", f"@{call} %*\r\n"
    else:
        naming = '[ "$*" = CMakeCXXCompilerId.cpp ] && set -- -c "$@"\n' if name == "c++" else ""
        path, text = folder / name, f'#!/bin/sh\n{naming}exec {call} "$@"\n'
    path.write_text(text)
    path.chmod(0o755)
    return path
