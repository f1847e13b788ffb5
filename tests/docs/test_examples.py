"""Commands and Python print what the pages say."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import command
from waits import HANGS_S

import sterna
from sterna import LLM
from sterna.checkpoints.resolve import BUILT_IN

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"
PROMPT = "def read_lines(path):"

needs_docs = pytest.mark.skipif(not TUTORIAL.exists(), reason="needs the source tree's docs")


def blocks(page: Path) -> list[str]:
    """The page's blocks of Python."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.skipif(not README.exists(), reason="needs the source tree's README")
def test_the_sample_of_the_readme() -> None:
    """The bits of `nano` are those of every machine, and so is what it samples."""
    (sample,) = (block for block in blocks(README) if block.startswith(PROMPT))
    printed = command("generate", PROMPT, "--seed", "1", "--max-tokens", "56").stdout
    assert sample.rstrip() == PROMPT + printed.rstrip()


def test_the_samples_of_the_model_card() -> None:
    llm = LLM("nano", threads=1)
    samples = blocks(BUILT_IN["nano"] / "README.md")
    assert len(samples) == 2
    for sample, prompt in zip(
        samples, (PROMPT, "class Stack:\n    def push(self, item):"), strict=True
    ):
        assert sample == f"{prompt}{llm.generate(prompt, max_tokens=96, seed=1).text}\n"


def steps(page: Path) -> Iterator[tuple[str, str, str | None]]:
    """(language, code, what it prints or None) of a page's blocks, in order."""
    pattern = re.compile(
        r"(<!-- not run -->\n)?```(sh|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL
    )
    for match in pattern.finditer(page.read_text(encoding="utf-8")):
        if match[1] is None:
            yield match[2], match[3], match[4]


def matches(printed: str, expected: str) -> bool:
    """`...` in what is expected stands for any text."""
    pattern = ".*".join(re.escape(part) for part in expected.strip("\n").split("..."))
    return re.fullmatch(pattern, printed.strip("\n"), re.DOTALL) is not None


@contextlib.contextmanager
def shell(folder: Path, log: Path) -> Iterator[Any]:
    """Runs lines in one folder; a line that ends with `&` is a server, which is awaited."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bin = folder / "bin"
    bin.mkdir()
    (bin / "sterna").write_text(f'#!/bin/sh\nexec {sys.executable} -m sterna "$@"\n')
    (bin / "sterna").chmod(0o755)
    variables = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}"}
    servers: list[subprocess.Popen[bytes]] = []

    def run(line: str) -> str:
        line = line.replace("8080", str(port))
        if line.endswith("&"):
            with log.open("wb") as output:
                words = ["exec " + line[:-1]]
                servers.append(
                    subprocess.Popen(
                        words, shell=True, cwd=folder, env=variables, stdout=output, stderr=output
                    )
                )
            while b"ready" not in log.read_bytes():
                assert servers[-1].poll() is None, log.read_text()
                time.sleep(0.05)
            return ""
        done = subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout + done.stderr

    try:
        yield run
    finally:
        for server in servers:
            server.terminate()
            server.wait(HANGS_S)


#: How-tos whose blocks of Python run, one after the other, with `nano` for the models they name.
RUN = ("run", "hub", "gguf", "chat", "constrain", "many-requests")


@needs_docs
@pytest.mark.parametrize("page", RUN)
def test_python_of_how_tos(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "sterna": sterna,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    for code in blocks(ROOT / f"docs/how-to/{page}.md"):
        code = re.sub(r'LLM\("[^"]*"', 'LLM("nano"', code)
        names.setdefault("llm", LLM("nano"))
        with contextlib.redirect_stdout(io.StringIO()):
            # A page may await at the top, as a notebook can.
            done = eval(compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.iscoroutine(done):
                asyncio.run(done)


@needs_docs
def test_the_tutorial(tmp_path: Path) -> None:
    """Each block runs, in the page's order, and prints what the page says."""
    names: dict[str, Any] = {}
    every = list(steps(TUTORIAL))
    no_curl = shutil.which("curl") is None
    possible = [step for step in every if not (no_curl and "curl -s" in step[1])]
    with shell(tmp_path, tmp_path / "log") as run:
        for language, code, expected in possible:
            if language == "python":
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(compile(code, str(TUTORIAL), "exec"), names)
                printed = out.getvalue()
            else:
                printed = "".join(run(line) for line in code.splitlines())
            if expected is not None:
                assert matches(printed, expected), f"{code}\nprinted\n{printed}"
    if len(possible) < len(every):
        pytest.skip("all blocks are right, except those with curl, which is missing here")
