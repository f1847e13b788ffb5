"""Files that commands write: whole or not at all, through links, into pipes, at any name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import command, failed
from waits import HANGS_S

from sterna.checkpoints.packed_directory import CONFIG
from sterna.errors import RequestError
from sterna.files.writing import replacing, replacing_directory

EMBED = ("embed", "--pooling", "mean", "--threads", "1")


def test_a_full_disk_leaves_the_old_vectors(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's."""
    out = tmp_path / "v.npy"
    out.write_bytes(b"old")
    script = (
        "import resource, sys; from sterna.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *EMBED, "--output", str(out), *"abcdefgh"],
        capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert str(out) in done.stderr
    assert "too large" in done.stderr
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_line_of_stdin_is_a_text() -> None:
    """Other characters at which str.splitlines ends a line are parts of a text."""
    texts = ["one\u2028still one", "two\x0cstill two", "three\x85"]
    alone = command(*EMBED, *texts).stdout
    assert len(alone.splitlines()) == 3
    for piped in ("\n".join(texts), "\r\n".join(texts) + "\r\n"):
        assert command(*EMBED, stdin=piped.encode()).stdout == alone
    failed(command(*EMBED, stdin=b""), "texts", "empty")


@pytest.mark.parametrize("name", ["embed", "generate"])
def test_a_pipe_gets_all(tmp_path: Path, name: str) -> None:
    """`--output >(gzip > out.gz)`: there is nothing to replace, and nothing to resume."""
    pipe, asked, got = tmp_path / "pipe", tmp_path / "in.jsonl", list[bytes]()
    os.mkfifo(pipe)
    asked.write_text(json.dumps({"prompt": "x", "max_tokens": 2}) + "\n")
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    arguments = (*EMBED, "a", "b") if name == "embed" else ("generate", "--file", str(asked))
    result = command(*arguments, "--output", str(pipe))
    assert result.exit_code == 0, result.output
    reader.join(HANGS_S)
    if name == "embed":
        (tmp_path / "v.npy").write_bytes(got[0])
        assert np.load(tmp_path / "v.npy").shape == (2, 256)
    else:
        assert json.loads(got[0])["index"] == 0
    assert pipe.is_fifo()


def test_links_stay(tmp_path: Path) -> None:
    """A model's folder that lies on another disk, or is yet to be made; a file behind a link."""
    (tmp_path / "disk").mkdir()
    for target in ("disk", "later"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(target)
        result = command("convert", "nano", str(link))
        assert result.exit_code == 0, result.output
        result = command("convert", "nano", str(link), "--format", "t5", "--force")
        assert result.exit_code == 0, result.output
        assert link.is_symlink()
        assert (tmp_path / target / CONFIG).is_file()
    (tmp_path / "link").symlink_to("file")
    for data in (b"one", b"two"):
        with replacing(tmp_path / "link", 3) as file:
            file.write(data)
        assert (tmp_path / "file").read_bytes() == data
    assert (tmp_path / "link").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "disk", "file", "later", "link", "to-disk", "to-later",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_place_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The current folder and others without a name of their own are refused before any work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.jsonl").write_text('{"text": "x"}\n')
    failed(command("convert", "nano", name), "path of something new")
    failed(command("train", "nano", "chats.jsonl", name), "path of something new")
    with (
        pytest.raises(RequestError, match="path of something new"),
        replacing_directory(Path(name), 1),
    ):
        pass


def test_a_plot_has_a_place_before_training(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text('{"text": "x"}\n')
    for plot, words in (("a.pdf", ("plot", ".png or .svg")), ("none/a.svg", ("plot", "folder"))):
        out = tmp_path / "out"
        arguments = ("nano", str(tmp_path / "chats.jsonl"), str(out))
        failed(command("train", *arguments, "--plot", str(tmp_path / plot)), *words)
        assert not out.with_name("out.training").exists()
