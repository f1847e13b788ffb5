"""llama.cpp as the module llama_cpp, where it is installed, asked in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import cache

import pytest


@cache
def _is_installed() -> bool:
    trial = subprocess.run([sys.executable, "-c", "import llama_cpp"], capture_output=True)
    return trial.returncode == 0


def last_line(script: str, *arguments: str) -> str:
    """The last line that a script prints. Its own process keeps a crash from ending the tests.

    Skips without the module, and where the module has instructions that do not run: GCC 12 compiles
    ggml's configuration of tiles to code that a CPU with AMX refuses.
    """
    if not _is_installed():
        pytest.skip("needs llama-cpp-python: pip install llama-cpp-python")
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode == -signal.SIGILL:
        pytest.skip("llama-cpp-python ended by SIGILL: build it with a later compiler than GCC 12")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""
