"""The build backend asks for zig where there is no compiler, and names what else is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

BACKEND = Path(__file__).parents[2] / "cmake" / "sterna_build.py"

pytest.importorskip("scikit_build_core")
pytestmark = pytest.mark.skipif(not BACKEND.exists(), reason="needs the source tree")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh backend, without a compiler that the caller chose."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("STERNA_ZIG", raising=False)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    module = loaded()
    monkeypatch.setattr(module, "_require_headers", lambda: None)
    return module


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sterna_build", BACKEND)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Have `c++` be a program that ends with this code, and no other compiler."""
    folder.mkdir()
    (folder / "c++").write_text(f"#!/bin/sh\nexit {code}\n")
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def asked(module: ModuleType) -> list[str]:
    return [name for name in module.get_requires_for_build_wheel() if name.startswith("ziglang")]


def test_a_compiler_is_used(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path / "bin", monkeypatch, 0)
    assert asked(backend) == []
    with backend._compiler():
        assert "CMAKE_ARGS" not in os.environ


@pytest.mark.parametrize("old", [True, False])
def test_zig_without_one(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """Neither a compiler that refuses C++20 counts, nor none at all."""
    compiler(tmp_path / "bin", monkeypatch, 1)
    if not old:
        (tmp_path / "bin" / "c++").unlink()
    assert asked(backend) == [backend.ZIG]


def test_zig_is_used(backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CMake gets a compiler and an archiver; what the caller gave CMake stays."""
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    (tmp_path / "ziglang-0.17.dist-info").mkdir()
    (tmp_path / "ziglang-0.17.dist-info" / "METADATA").write_text("Name: ziglang\nVersion: 0.17\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STERNA_ZIG", "2.28")
    monkeypatch.setenv("CMAKE_ARGS", "-DX=1")
    with backend._compiler():
        given = os.environ["CMAKE_ARGS"].split()
        assert given[0] == "-DX=1"
        assert [arg.partition("=")[0] for arg in given[1:]] == [
            "-DCMAKE_CXX_COMPILER", "-DCMAKE_AR", "-DCMAKE_RANLIB",
            "-DCMAKE_TRY_COMPILE_TARGET_TYPE", "-DSTERNA_ZIG"
        ]  # fmt: skip
        script = Path(given[1].partition("=")[2]).read_text()
        assert "c++ -target" in script
        assert str(tmp_path / "ziglang" / "zig") in script
        assert given[-1].endswith("=0.17")
    assert os.environ["CMAKE_ARGS"] == "-DX=1"


@pytest.mark.skipif(os.name == "nt", reason="Windows has a .cmd without this line")
@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        (["CMakeCXXCompilerId.cpp"], "-c CMakeCXXCompilerId.cpp"),
        (["-c", "kernels.cpp"], "-c kernels.cpp"),
        (["core.o", "-o", "a module"], "core.o -o a module"),
    ],
)
def test_the_compilers_name_is_asked_without_linking(
    backend: ModuleType, tmp_path: Path, arguments: list[str], called: str
) -> None:
    """For a linked program zig compiles its C++ library, once for each kind."""
    script = backend._tool(tmp_path, "c++", "echo")
    done = subprocess.run([script, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.rstrip() == called


def test_a_chosen_compiler(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path / "bin", monkeypatch, 1)
    monkeypatch.setenv("CXX", "of-the-user")
    assert asked(backend) == []


def test_all_hooks(backend: ModuleType) -> None:
    """Without one for metadata, pip builds the wheel twice."""
    assert {*backend.base.__all__} <= {*backend.__all__}


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip would name a build requirement that has no release for it."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or later, but got "):
        loaded()


def test_missing_headers(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(SystemExit, match=r"apt install python3\.\d+-dev"):
        backend._require_headers()
