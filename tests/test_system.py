"""Only one module of Python, and the folders of one room of the core, know the operating system."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from sterna.errors import RequestError
from sterna.files import system, writing

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, NATIVE = ROOT / "src/sterna", ROOT / "native"
SEAM = PACKAGE / "files/system.py"

# ------------------------------------------------------------------------------------- sources

#: Modules of the standard library that Windows, or all systems but it, lack.
MODULES = {
    "fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty",
    "winreg",
}  # fmt: skip
#: Names of os, signal and socket that a system lacks, by their beginnings.
NAMES = re.compile(
    r"os\.(fork|forkpty|preadv?|pwritev?|sched_\w+|sysconf|fchmod|fchown|chown|get(e?uid|e?gid)|"
    r"setpriority|nice|getloadavg|killpg|setsid|wait\w*|mkfifo|statvfs|posix_\w+|uname|"
    r"O_(NONBLOCK|CLOEXEC|DIRECTORY|NOFOLLOW|DIRECT|BINARY))|"
    r"signal\.(SIGHUP|SIGUSR\d|SIGKILL|SIGALRM|SIGBUS|SIGCHLD|SIGQUIT|SIGBREAK|pthread_\w+|"
    r"setitimer)|socket\.AF_UNIX|sys\.platform|os\.name"
)
PATHS = re.compile(r"^/?(proc|sys)/")


#: Lies in bundles next to the program that starts them, before Sterna can be imported.
ALONE = PACKAGE / "files/bundle_file.py"


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path not in (SEAM, ALONE):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def docstrings(tree: ast.Module) -> set[int]:
    """The constants that are statements of their own, by identity."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def test_one_module_of_python_knows_the_system() -> None:
    found = []
    for path, tree in trees():
        texts = docstrings(tree)
        for node in ast.walk(tree):
            names = [name for name in modules(node) if name.split(".")[0] in MODULES]
            if isinstance(node, ast.Attribute) and NAMES.fullmatch(ast.unparse(node)):
                names.append(ast.unparse(node))
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and PATHS.match(node.value) and id(node) not in texts:
                names.append(node.value)
            line = getattr(node, "lineno", 0)
            found += [f"{path.relative_to(ROOT)}:{line}: {name}" for name in names]
    assert not found


#: What tells a system, or is a header that some lack.
CONDITION = re.compile(
    r"^\s*#\s*(?:el)?if.*(__linux__|__APPLE__|__MACH__|_WIN32|_WIN64|__unix__|__MINGW|MADV_|MAP_)"
)
HEADER = re.compile(
    r"^\s*#\s*include\s*<(sys/|mach|linux/|asm/|pthread|(unistd|fcntl|sched|signal|dirent|poll|"
    r"windows|psapi|io|dlfcn)\.h)"
)
SYSTEMS = {"linux", "macos", "windows", "posix"}


def test_one_room_of_the_core_knows_the_system() -> None:
    found, inside = [], 0
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".inc"):
            continue
        if SYSTEMS & set(path.relative_to(NATIVE).parts):
            inside += 1
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if CONDITION.match(line) or HEADER.match(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line}")
    assert not found
    assert inside > 10


def test_each_system_defines_what_the_header_declares() -> None:
    """A function of system.h is defined once for each system: in its folder, or in posix."""
    room = NATIVE / "runtime/system"
    header = (room / "system.h").read_text(encoding="utf-8")
    names = set(re.findall(r"^\w[\w:&<>*, ]*[ *&](\w+)\([^;{]*\);", header, re.MULTILINE))
    assert len(names) > 20
    for folders in (("linux", "posix"), ("macos", "posix"), ("windows",)):
        text = "".join(
            path.read_text(encoding="utf-8")
            for folder in folders
            for path in sorted((room / folder).glob("*.cpp"))
        )
        defined = set(re.findall(r"^[^\s/#}][^;\n]*?\bsystem::(\w+)\(", text, re.MULTILINE))
        assert names <= defined, (folders, names - defined)


# ------------------------------------------------------------------------------------- absence

ABSENT = ("fcntl", "resource", "termios", "pwd", "grp", "posix")
#: As on Windows, as far as a process here can pretend it.
PRETEND = """
import os, signal, socket, sys
for name in {absent!r}:
    sys.modules[name] = None
for module, names in {{
    os: ["preadv", "fork", "sched_getaffinity", "sysconf", "fchmod", "setpriority", "O_NONBLOCK",
         "O_CLOEXEC", "O_NOFOLLOW", "geteuid"],
    signal: ["SIGHUP"],
    socket: ["AF_UNIX"],
}}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""


def pretended(code: str, *arguments: str) -> str:
    """What a program prints in an interpreter without the parts that Windows lacks."""
    # os itself needs posix, and subprocess fcntl: both are loaded before they are hidden.
    absent = [name for name in ABSENT if name != "posix"]
    code = (
        "import subprocess, tempfile, pathlib, shutil\n"
        + PRETEND.format(absent=absent)
        + textwrap.dedent(code)
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env=os.environ | {"STERNA_CACHE": "off"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_modules_are_imported_without_posix() -> None:
    code = """
        import importlib, pathlib, sys
        for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
            parts = path.relative_to(sys.argv[1]).with_suffix("").parts
            if parts[0] in ("files", "checkpoints", "cli", "engine") or parts == ("runtime",):
                name = ".".join(("sterna", *(p for p in parts if p != "__init__")))
                if not name.endswith("__main__"):
                    importlib.import_module(name)
                    print(name)
    """
    assert len(pretended(code, str(PACKAGE)).split()) > 50


def test_files_are_read_and_written_without_posix(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(range(256)) * 50_000)
    code = """
        import sys
        from pathlib import Path
        from sterna.files.reading import Span, open_regular, read_spans
        from sterna.files.writing import replacing, replacing_directory
        folder = Path(sys.argv[1])
        with open_regular(folder / "in") as (descriptor, state):
            buffer = bytearray(state.nbytes)
            half = state.nbytes // 2
            spans = [Span(0, half, half), Span(half, 0, half)]
            read_spans(folder / "in", descriptor, memoryview(buffer), spans)
        with replacing(folder / "out", len(buffer)) as file:
            file.write(buffer)
        with replacing_directory(folder / "new", 1) as new:
            (new / "file").write_bytes(buffer[:10])
        print(*sorted(path.name for path in folder.rglob("*")))
    """
    assert pretended(code, str(tmp_path)).split() == ["file", "in", "new", "out"]
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


# ------------------------------------------------------------------------------------- locks


def test_a_lock_is_of_one_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    code = "import sys; from pathlib import Path; from sterna.files import system\n"
    code += "with system.opened(Path(sys.argv[1])) as file:\n system.lock(file, wait=False)"
    with system.opened(path) as file:
        system.lock(file)
        command = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "BlockingIOError" in done.stderr
    assert subprocess.run(command).returncode == 0


def test_a_folder_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int | None, wait: bool = True) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(writing, "lock", refuse)
    with writing.replacing_directory(tmp_path / "new", 1) as folder:
        (folder / "file").touch()
    assert (tmp_path / "new/file").exists()
    with pytest.raises(RequestError), writing.replacing_directory(tmp_path / "new", 1):
        pass
