"""The command line where its streams are closed, narrow, or no longer read; and run after run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_factory import Tiny
from gguf_factory import write as write_gguf
from helpers import command, failed
from waits import HANGS_S

import sterna

RUN = f'"{sys.executable}" -m sterna'
pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses a POSIX shell")


def shell(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """A command of the shell, in which {run} is `sterna`."""
    package = str(Path(sterna.__file__).parent.parent)  # also where PYTHONPATH is relative
    environ = {**os.environ, "STERNA_CACHE": str(folder / "cache"), "PYTHONPATH": package, **env}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text.replace('{run}', RUN)}"],
        capture_output=True, timeout=HANGS_S, env=environ, cwd=folder, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "{run} formats --no-measure | head -c 10", "{run} info --no-bandwidth | true",
        "{run} generate --help | true", "{run} --help | true", "{run} models | true",
        "{run} generate x --max-tokens 2 >&-",
        "{run} generate x --max-tokens 2 <&-",
    ],
)  # fmt: skip
def test_streams_that_nobody_reads(text: str, tmp_path: Path) -> None:
    done = shell(text, tmp_path)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


def test_an_encoding_without_the_signs(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("def f(x):\n    return x\n" * 8)
    done = shell("{run} perplexity --file t.txt", tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"perplexity" in done.stdout


def test_a_gguf_file_runs_again_from_the_cache_of_another_process(tmp_path: Path) -> None:
    """The tokenizer is in the packed copy, though the process ends while it is written."""
    write_gguf(tmp_path / "m.gguf", Tiny())
    texts = set()
    for _ in range(2):
        done = shell("{run} generate --model m.gguf 'The meaning' --max-tokens 3", tmp_path)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1
    (entry,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    (entry / "tokenizer.json").unlink()  # as an earlier version may have left it
    assert shell("{run} generate --model m.gguf x --max-tokens 1", tmp_path).returncode == 0


def test_a_text_without_tokens_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    file = ("--file", str(tmp_path / "empty.txt"))
    failed(command("perplexity", *file), "two tokens")
    failed(command("compare", "nano", "--format-b", "t5", *file), "two tokens")
