"""Short names of models: from the Hub, from a Python package, or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import assets
import pytest
from helpers import command, failed, failure
from hub_helpers import GGUFS, local_hub
from hub_server import Hub
from huggingface_hub import constants

from sterna.checkpoints import hub as hubs
from sterna.checkpoints import short_names
from sterna.checkpoints.resolve import resolve
from sterna.checkpoints.short_names import ShortName, hub_name, short_name
from sterna.errors import HubError, ModelFormatError

FILE = "nano-Q4_K_M.gguf"
DATA = b"GGUF" * 20_000  # the Hub knows the SHA-256 of large files alone


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with local_hub(monkeypatch, tmp_path) as running:
        yield running


@pytest.fixture
def named(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ShortName:
    """A model called tern, on the Hub and in a package that pip finds in a folder."""
    commit = hub.add("terns/short", {**GGUFS, FILE: DATA})
    digest = hashlib.sha256(DATA).hexdigest()
    made = ShortName(
        "tern", "A tern", "MIT", f"terns/short@{commit}:{FILE}", len(DATA), digest, "tern-file==1.0"
    )
    monkeypatch.setattr(short_names, "_table", lambda: {"tern": made})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return made


def package(folder: Path, data: bytes) -> None:
    """A wheel with the file."""
    facts = "Metadata-Version: 2.1\nName: tern-file\nVersion: 1.0\n"
    about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / "tern_file-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tern_file/{FILE}", data)
        wheel.writestr("tern_file-1.0.dist-info/METADATA", facts)
        wheel.writestr("tern_file-1.0.dist-info/WHEEL", about)
        wheel.writestr("tern_file-1.0.dist-info/RECORD", "")


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def test_the_table() -> None:
    """SmolLM2's digest is the one that other tests have, and what the names need is there."""
    smollm2 = short_name("smollm2")
    assert smollm2 is not None
    assert smollm2.sha256 == hashlib.sha256(assets.smollm2().read_bytes()).hexdigest()
    assert smollm2.size == assets.smollm2().stat().st_size
    for name, row in short_names.short_names().items():
        parsed = hub_name(name)
        assert parsed.is_commit(parsed.revision)
        assert parsed.file
        assert (len(row.sha256), "==" in row.package) == (64, True)
        assert row.licence
        assert row.about
    assert short_name("org/name") is None
    assert short_name("smollm2.gguf") is None


def test_a_folder_of_the_name(
    named: ShortName, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes first if there is a model in it; one of notes hides nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tern").mkdir()
    (tmp_path / "tern/notes.txt").write_text("birds")
    assert resolve("tern").read_bytes() == DATA
    own = tmp_path / "tern/own.gguf"
    own.write_bytes(b"GGUF")
    assert resolve("tern").resolve() == own


def test_from_the_hub(named: ShortName, hub: Hub) -> None:
    path = resolve("tern")
    assert path.read_bytes() == DATA
    count = len(hub.requests)
    assert resolve("tern") == path
    assert len(hub.requests) == count  # nothing is asked again
    found = command("models", "--json")
    assert "terns/short" in found.stdout
    assert command("rm", "--yes", "tern").exit_code == 0
    assert not path.exists()


def test_from_a_package(named: ShortName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the Hub is not reached; the file then is a download of the Hub like any other."""
    unreachable(monkeypatch)
    package(tmp_path, DATA)
    told: list[str] = []
    path = named.fetch(announce=told.append).use()
    assert path.read_bytes() == DATA
    assert "package index" in " ".join(told)
    assert hubs.find(hub_name("tern")) is not None
    assert resolve("tern", offline=True) == path
    left = [p for p in path.parents[2].rglob("*") if p.suffix == ".whl"]
    assert left == []


def test_another_file_is_refused(
    named: ShortName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unreachable(monkeypatch)
    package(tmp_path, DATA + b"!")
    failure(named.fetch, ModelFormatError, named.sha256)
    assert hubs.find(hub_name("tern")) is None


def test_a_hub_with_another_file(named: ShortName) -> None:
    wrong = ShortName(**{**vars(named), "sha256": "0" * 64})
    failure(wrong.fetch, ModelFormatError, "0" * 64)


def test_neither(named: ShortName, monkeypatch: pytest.MonkeyPatch) -> None:
    failure(lambda: named.fetch(offline=True), HubError, "sterna pull tern")
    unreachable(monkeypatch)
    failure(named.fetch, HubError, "tern-file==1.0", "nor does pip")
    failed(command("generate", "--model", "tren", "x"), "tern")
