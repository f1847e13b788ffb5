"""`--models-dir`: the models of a folder laid out as llama.cpp's documentation shows, on demand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gguf_factory import Tiny, checkpoint, write
from helpers import failure
from server_process import ServerProcess, serving

import sterna
from sterna.cli.models_folder import models_in
from sterna.errors import RequestError

NANO = Path(sterna.__file__).parent / "data" / "nano"


def states(server: ServerProcess, path: str = "/v1/models") -> dict[str, Any]:
    rows = server.http.get(path).json()["data"]
    return {row["id"]: row["status"] for row in rows}


def test_models_of_a_folder(tmp_path: Path) -> None:
    """Files and folders are listed with their state; a request loads one, or is told of failure."""
    folder = tmp_path / "models"
    tiny = Tiny()
    floats = write(tmp_path / "tiny.gguf", tiny)
    (folder / "seen").mkdir(parents=True)
    shutil.copy(tmp_path / "tiny.gguf", folder / "tiny-F16.gguf")
    shutil.copy(tmp_path / "tiny.gguf", folder / "seen" / "model.gguf")
    shutil.copytree(NANO, folder / "nano")
    checkpoint(folder / "hf", tiny, floats)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    for name in (".hidden.gguf", "readme.md"):
        (folder / name).write_bytes(b"")
    (folder / "empty").mkdir()
    log = tmp_path / "first"
    log.mkdir()
    with serving(log, "--models-dir", str(folder)) as server:
        unloaded = {"value": "unloaded"}
        expected = dict.fromkeys(["broken", "hf", "nano", "seen", "tiny-F16"], unloaded)
        assert states(server) == states(server, "/models") == expected
        assert server.http.get("/health").status_code == 200
        body = {"prompt": "def f(x):", "max_tokens": 4, "temperature": 0}
        assert server.post("/v1/completions", model="nano", **body).status_code == 200
        assert states(server) == {**expected, "nano": {"value": "loaded"}}
        texts = {
            server.post("/v1/completions", model=name, **body).json()["choices"][0]["text"]
            for name in ("tiny-F16", "seen")
        }
        assert len(texts) == 1
        answer = server.post("/v1/completions", model="broken", **body)
        assert answer.status_code == 500
        assert str(tmp_path) not in answer.text
        assert states(server)["broken"] == {"value": "unloaded", "failed": True}
        assert server.post("/models/unload", model="nano").json() == {"success": True}
        assert server.post("/models/load", model="hf").json() == {"success": True}
        assert states(server)["nano"] == unloaded
        assert states(server)["hf"] == {"value": "loaded"}
        names = {row["name"] for row in server.http.get("/api/tags").json()["models"]}
        assert names == {f"{name}:latest" for name in expected}
    with serving(log, str(NANO), "--served-name", "main", "--models-dir", str(folder)) as server:
        assert list(states(server)) == ["main", *expected]
        assert states(server)["main"] == {"value": "loaded"}


def test_names(tmp_path: Path) -> None:
    """Of the first part of a split; two of one name, or no model, is an error."""
    failure(lambda: models_in(tmp_path), RequestError, "models-dir", "none")
    parts = ("Big-00001-of-00002.gguf", "Big-00002-of-00002.gguf", "small.Q4_K_M.gguf")
    for name in (*parts, "mmproj-small-F16.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert models_in(tmp_path) == {
        "Big": str(tmp_path / "Big-00001-of-00002.gguf"),
        "small.Q4_K_M": str(tmp_path / "small.Q4_K_M.gguf"),
    }
    (tmp_path / "Big").mkdir()
    (tmp_path / "Big" / "Big.gguf").write_bytes(b"GGUF")
    failure(lambda: models_in(tmp_path), RequestError, "models-dir", "Big", "different")
