"""A bundle of nano is run as its user would run it: by the shell, with a bare interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from waits import HANGS_S

from sterna import LLM
from sterna.bundle import bundle
from sterna.bundle.interpreter import read_interpreter
from sterna.bundle.targets import Target, targets_of
from sterna.cli.bundled import arguments, require_known
from sterna.convert.verification import DAMAGED, VERIFIED, verify
from sterna.errors import ModelFormatError, RequestError
from sterna.files.bundle_file import (
    FILES,
    MODEL,
    Bundle,
    BundleError,
    read_bundle,
    this_target,
    unpacked,
)

NANO_BYTES = 3_000_000  # fewer than its weights have
PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "nano it"  # a name that a shell may split
    bundle("nano", path, args="--max-tokens 6 --system 'Be brief.'", compress=False)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(path: Path, cache: Path | str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a file with nothing but the shell's tools and the interpreter that this one is of."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = Path(sys.base_prefix, "bin", name)
    if not python.exists():
        pytest.skip(f"no {python}")
    return subprocess.run(
        [path, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=HANGS_S,
        env={
            "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": "/nonexistent",
            "STERNA_CACHE": str(cache), "STERNA_ISA": LLM("nano").info()["isa"],
        },
    )  # fmt: skip


def test_it_generates_what_the_installed_program_does(bundled: Path, cache: Path) -> None:
    """The baked --max-tokens applies, and --system, which `generate` lacks, is left out."""
    done = run(bundled, cache, "generate", PROMPT, "--seed", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == LLM("nano").generate(PROMPT, max_tokens=6, seed=1).text


def test_a_prompt_is_answered(bundled: Path, cache: Path) -> None:
    done = run(bundled, cache, "Hello", "--seed", "1", "--max-tokens", "4")
    llm = LLM("nano")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert done.stdout.strip() == llm.chat(messages, seed=1, max_tokens=4).text.strip()


def test_weights_are_mapped_from_the_file(bundled: Path, cache: Path) -> None:
    assert run(bundled, cache, "generate", PROMPT).returncode == 0
    assert LLM(bundled, mmap=True).model.mapped
    kept = [file for file in cache.rglob("*") if file.is_file()]
    assert not [file for file in kept if file.suffix in (".safetensors", ".tmp")]
    weights = Path(__file__).parents[2] / "src/sterna/data/nano/model.safetensors"
    if weights.exists():
        header = read_bundle(bundled)
        assert header is not None
        offset, nbytes = header.weights
        assert (offset % 65536, nbytes) == (0, weights.stat().st_size)
        with bundled.open("rb") as file:
            file.seek(offset)
            assert file.read(nbytes) == weights.read_bytes()


def test_without_a_cache(bundled: Path, tmp_path: Path) -> None:
    """What is unpacked goes with the process."""
    before = set(Path("/tmp").glob("sterna-*"))
    done = run(bundled, "off", "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "sterna")
    assert set(Path("/tmp").glob("sterna-*")) <= before


def test_it_can_be_moved(bundled: Path, cache: Path, tmp_path: Path) -> None:
    moved = shutil.copy(bundled, tmp_path / "other")
    assert run(tmp_path / "other", cache, "generate", PROMPT).returncode == 0
    assert verify(moved)[-1].status == VERIFIED


@pytest.mark.parametrize("share", [0.0001, 0.5, 0.99])
def test_a_truncated_file_is_refused(bundled: Path, tmp_path: Path, share: float) -> None:
    """By the shell before it looks for Python, and by the library. Cut within the header, the file
    is none that the system would run."""
    data = bundled.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(data[: int(len(data) * share)])
    cut.chmod(0o755)
    done = run(cut, tmp_path)
    assert done.returncode == 2
    assert f"must have {len(data)} bytes, but has {cut.stat().st_size}" in done.stderr
    assert done.stderr.count("\n") == 1
    with pytest.raises(ModelFormatError, match=f"expected {len(data)} bytes"):
        LLM(cut)


def test_a_damaged_program_is_refused(bundled: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    data = bytearray(bundled.read_bytes())
    at = data.rindex(b'"""Use a cache of') if b'"""Use a cache of' in data else data.rindex(b"def ")
    data[at] ^= 1
    damaged.write_bytes(data)
    damaged.chmod(0o755)
    done = run(damaged, tmp_path / "cache", "--version")
    assert done.returncode == 2
    assert "copy or download it again" in done.stderr
    assert "Traceback" not in done.stderr
    assert verify(damaged)[-1].status == DAMAGED


def test_damaged_weights_are_found(bundled: Path, cache: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    data = bytearray(bundled.read_bytes())
    data[65536 + NANO_BYTES] ^= 1
    damaged.write_bytes(data)
    damaged.chmod(0o755)
    done = run(damaged, cache, "verify")
    assert (done.returncode, done.stdout.split()[0]) == (1, "DAMAGED")
    assert run(bundled, cache, "verify").returncode == 0


def test_a_bundle_has_no_path_out_of_its_folder(tmp_path: Path) -> None:
    """Opening a model does not write elsewhere, whoever made the file."""
    archive = tmp_path / "archive"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(FILES, json.dumps({MODEL: {"../config.json": "x"}}))
        file.writestr("x", "{}")
    made = Bundle(archive, 0, (0, 0), {MODEL: "0" * 64}, "chat", [])
    with pytest.raises(BundleError, match="impossible names"):
        unpacked(made, MODEL)


def test_equal_input_gives_equal_bytes(bundled: Path, tmp_path: Path) -> None:
    args = "--max-tokens 6 --system 'Be brief.'"
    bundle("nano", tmp_path / "again", args=args, compress=False)
    assert (tmp_path / "again").read_bytes() == bundled.read_bytes()
    with pytest.raises(RequestError, match="must not exist"):
        bundle("nano", tmp_path / "again")


def test_command_lines() -> None:
    made = Bundle(Path("/b"), 0, (0, 0), {}, "chat", ["--temperature", "0.5", "--max-queue=3"])
    assert arguments(made, []) == ["chat", "--mmap", "--temperature", "0.5", "--model", "/b"]
    assert arguments(made, ["serve", "--port", "1"]) == [
        "serve", "--mmap", "--max-queue=3", "/b", "--port", "1"
    ]  # fmt: skip
    assert arguments(made, ["Hi", "--seed", "1"])[-3:] == ["Hi", "--seed", "1"]
    assert arguments(made, ["verify"]) == ["verify", "/b"]
    assert arguments(made, ["formats"]) == ["formats"]
    assert arguments(made, ["--help"]) == ["--help"]


@pytest.mark.parametrize("args", ["--no-such 3", "word", "--temperature", "'"])
def test_unknown_baked_options(args: str) -> None:
    with pytest.raises(RequestError, match="args: must be"):
        require_known(args)


def test_targets() -> None:
    assert [str(target) for target in targets_of(None, None)] == [this_target()]
    both = targets_of(["linux-x86_64", "macos-arm64"], ["3.11", "3.12"])
    assert [str(target) for target in both] == [
        "linux-x86_64-cp311", "linux-x86_64-cp312", "macos-arm64-cp311", "macos-arm64-cp312"
    ]  # fmt: skip
    assert "macosx_11_0_arm64" in Target("macos-arm64", "3.12").wheel_platforms()
    with pytest.raises(RequestError, match="platform"):
        targets_of(["amiga"], None)
    with pytest.raises(RequestError, match="python-version"):
        targets_of(None, ["3.10"])


def test_an_interpreter_inside(tmp_path: Path) -> None:
    """A stand-in says what it was called with: the script unpacks it once and starts it."""
    home = tmp_path / "home"
    for name in ("bin/python3", "lib/python3.12/os.py", "lib/python3.12/test/x.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text('#!/bin/sh\necho "$0 $1 $3"\n')
    (home / "bin/python3").chmod(0o755)
    with tarfile.open(tmp_path / "home.tar.gz", "w:gz") as archive:
        archive.add(home, "python")
    packed = read_interpreter(home)
    assert packed == read_interpreter(tmp_path / "home.tar.gz")
    assert packed.version == "3.12"
    python_here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (home / "lib/python3.12").rename(home / f"lib/python{python_here}")
    path = tmp_path / "bundled"
    bundle("nano", path, python=home, compress=False)
    for _ in range(2):
        done = run(path, tmp_path / "cache", "serve")
        python, flags, command = done.stdout.split()
        assert python.startswith(str(tmp_path / "cache" / "bundle-python-"))
        assert (done.returncode, flags, command) == (0, "-IS", "serve")
    assert len(os.listdir(tmp_path / "cache")) == 1
    with pytest.raises(RequestError, match="python: must"):
        read_interpreter(tmp_path / "cache")
