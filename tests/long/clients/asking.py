"""Shared by all clients: prompts, a runner of programs, and the installed versions."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from recorder import Recorder

__all__ = [
    "CALLING", "CITY", "FUNCTION", "QUESTION", "SAID", "SAME", "TOOLS", "client", "node_folder",
    "ran", "version_of",
]  # fmt: skip

QUESTION = "What is the capital of France?"
SAID = [{"role": "user", "content": QUESTION}]
SAME: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
CALLING = {**SAME, "max_tokens": 64}  # a call that is cut has no arguments
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": CITY}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
#: Seconds that a program may take.
PROGRAM_S = 240


def client(name: str, *packages: str) -> pytest.MarkDecorator:
    """Name the client of a test, and its packages: of pip, of npm, or a program's name.

    `npm:openai` is that of npm, where pip has one of the same name.
    """
    return pytest.mark.client(name, *packages)


def ran(server: Recorder, home: Path, *command: str, **variables: str) -> str:
    """The output of a program that has a home of its own."""
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    env = {
        **os.environ, "HOME": str(home), "PWD": str(home), "NO_COLOR": "1",
        "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_BASE": f"{server.url}/v1", **variables,
    }  # fmt: skip
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "HF_HUB_OFFLINE"):
        env.pop(name, None)
    done = subprocess.run(
        [program, *command[1:]], env=env, cwd=home, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=PROGRAM_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def node_folder(package: str) -> Path | None:
    """The folder in `NODE_MODULES`, a list of folders, that has a package of npm."""
    folders = map(Path, filter(None, os.environ.get("NODE_MODULES", "").split(os.pathsep)))
    return next((one for one in folders if (one / package / "package.json").is_file()), None)


def version_of(package: str) -> str:
    """The installed version of a package of npm or pip, or of a program."""
    if not package.startswith("npm:"):
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
    package = package.removeprefix("npm:")
    if folder := node_folder(package):
        found: str = json.loads((folder / package / "package.json").read_text())["version"]
        return found
    if shutil.which(package) is None:
        return "?"
    told = subprocess.run([package, "--version"], text=True, capture_output=True, timeout=60)
    numbers = re.search(r"\d+(\.\d+)+", told.stdout + told.stderr)
    return numbers[0] if numbers else "?"
