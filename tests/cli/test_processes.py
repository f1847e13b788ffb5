"""The command line as a process: terminals, closed pipes, signals, and how little it imports."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from children import spawn
from waits import HANGS_S

from sterna.cli import COMMANDS

DRIVER = """
import sys, time
sys.path[:0] = {paths!r}
import sterna.llm, test_cli
class Slow(test_cli.FakeLLM):
    def _pieces(self, prompt):
        from types import SimpleNamespace
        try:
            for text in {texts!r}:
                yield SimpleNamespace(text=text, token=1, logprob=None)
                time.sleep({pause})
        finally:
            if {pause}: print("closed", file=sys.stderr)
sterna.llm.LLM = Slow
from sterna.cli import main
main()
"""


def _process(
    args: list[str], texts: list[str], pause: float = 0.0, **streams: Any
) -> subprocess.Popen[bytes]:
    package = sys.modules["sterna"].__file__
    assert package is not None
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support"), str(Path(package).parent.parent)]
    script = DRIVER.format(paths=paths, texts=texts, pause=pause)
    env = {**os.environ, "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    return spawn([sys.executable, "-c", script, *args], env=env, **streams)


def _read_all(descriptor: int) -> bytes:
    data = b""
    try:
        while part := os.read(descriptor, 65536):
            data += part
    except OSError:  # how Linux says that the other end is closed
        pass
    return data


def test_on_a_terminal() -> None:
    """Prompt dimmed, continuation, a line break, the speed; control characters are shown."""
    ours, theirs = pty.openpty()
    process = _process(
        ["generate", "a prompt"], [" on", "\x1b[31m\n"], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    output = _read_all(ours).decode()
    assert process.wait(HANGS_S) == 0
    shown = output[output.index("\x1b[2ma prompt") :].replace("\r\n", "\n")
    assert shown == (
        "\x1b[2ma prompt\x1b[0m on\u241b[31m\n\n3 tokens, first after 500 ms, then 2.0 tok/s\n"
    )


def test_no_prompt_on_a_terminal_is_an_error() -> None:
    ours, theirs = pty.openpty()
    process = _process(["generate"], [], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = _read_all(ours).decode()
    assert process.wait(HANGS_S) == 2
    assert "piped in" in output


def test_speed_goes_to_a_terminal_on_stderr_only() -> None:
    ours, theirs = pty.openpty()
    process = _process(["generate", "p"], ["x"], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    assert process.communicate(timeout=HANGS_S)[0] == b"x"
    assert b"2.0 tok/s" in _read_all(ours)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_stop_cleanly(number: signal.Signals, code: int) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = _process(["generate", "p"], ["xx", "x"], pause=HANGS_S, **pipes)
    assert process.stdout is not None
    assert process.stdout.read(2) == b"xx"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=HANGS_S)
    assert process.returncode == code
    assert stderr.split() == [b"closed"]  # the stream ended by itself, and there is no traceback


@pytest.mark.parametrize("module", ["click", "tokenizers"])
def test_ctrl_c_while_modules_are_imported(module: str, tmp_path: Path) -> None:
    """The options of the program itself, and those of a command."""
    interrupt = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / f"{module}.py").write_text(interrupt)
    package = sys.modules["sterna"].__file__
    assert package is not None
    path = os.pathsep.join([str(tmp_path), str(Path(package).parent.parent)])
    process = spawn(
        [sys.executable, "-m", "sterna", "generate"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.communicate(b"x", timeout=HANGS_S)[1] == b""
    assert process.returncode == 130


def test_a_closed_pipe_is_no_error() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = _process(["generate", "p"], ["x" * 900] * 100, **pipes)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(HANGS_S) == 0


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from sterna.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: assert e.code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'rich', 'torch', 'sterna.llm'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=HANGS_S)
    assert done.stdout.splitlines()[-1] == b"[]"
    for name in COMMANDS:
        assert name.encode() in done.stdout
