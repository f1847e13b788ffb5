"""Shared by the tests of the Hub: the built-in model as a repository, and a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import Hub, folder_files, serving
from huggingface_hub import constants
from waits import HANGS_S

from sterna.checkpoints import hub
from sterna.checkpoints.hub import HubName, store, transfer
from sterna.checkpoints.resolve import BUILT_IN

NANO = folder_files(BUILT_IN["nano"])
WEIGHTS = "model.safetensors"
NEEDED = set(NANO) - {"README.md"}
REPO = "terns/nano"
TOKEN = "hf_" + "notASecret" * 3
GGUFS = {
    "nano-Q4_K_M.gguf": b"m",
    "nano-Q4_K_S.gguf": b"s",
    "more/nano.Q8_0.gguf": b"8",
    "BF16/nano-BF16-00001-of-00002.gguf": b"1",
    "BF16/nano-BF16-00002-of-00002.gguf": b"22",
    "mmproj-nano-F16.gguf": b"p",
}


@contextmanager
def local_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub with the built-in model, an empty cache, and no waiting between attempts."""
    with serving(Hub()) as running:
        running.add(REPO, NANO)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", HANGS_S)
        monkeypatch.setattr(transfer, "RETRY_WAIT_S", 0.01)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for variable in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(variable, "127.0.0.1,localhost")
        huggingface_hub.close_session()  # its client has read the environment
        yield running
        huggingface_hub.close_session()


def pull(text: str = REPO, **options: bool) -> store.Download:
    """Pulls a model by its name."""
    return hub.pull(HubName.parse(text), **options)


def files_below(path: Path) -> set[str]:
    """The files below a folder, links included."""
    return {str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()}


def blobs(repo: str = REPO) -> list[Path]:
    """The blobs of a repository, whole and partial."""
    return sorted((store.Repository(repo).folder / "blobs").iterdir())
