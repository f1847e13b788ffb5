"""Mistakes of users, and hostile files: one line with a remedy, exit code 2, no traceback.

Each case is tried through `LLM`, where it is a typed exception, and the ones a terminal can meet
also through the command line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers import failure
from waits import HANGS_S

from sterna import LLM
from sterna.cli import main
from sterna.errors import (
    RequestError,
    SternaError,
)

PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1, context=128)


def cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`sterna` with these arguments, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sterna", *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


def refused_by_cli(*arguments: str, words: tuple[str, ...] = (), **environment: str) -> None:
    """Exit code 2, nothing on stdout that could pass for a result, a short message on stderr."""
    done = CliRunner().invoke(main, arguments, env=environment)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in " ".join(done.stderr.split()), done.stderr


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", "x"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("logprobs", -1),
        ("logprobs", 10**6),
    ],
)
def test_settings(llm: LLM, setting: str, value: object) -> None:
    """The message names the setting and the value; streaming refuses before the first piece."""
    settings: dict[str, Any] = {setting: value}
    failure(lambda: llm.generate(PROMPT, **settings), RequestError, setting)
    failure(lambda: next(iter(llm.stream(PROMPT, **settings))), RequestError, setting)


@pytest.mark.parametrize("setting", ["temperature", "top_p", "seed"])
def test_bool_is_no_number(llm: LLM, setting: str) -> None:
    """True is an int in Python, but surely a mistake here."""
    settings: dict[str, Any] = {setting: True}
    failure(lambda: llm.generate(PROMPT, **settings), RequestError, setting)


@pytest.mark.parametrize("prompt", ["", []])
def test_empty_prompt(llm: LLM, prompt: Any) -> None:
    """There is nothing to continue."""
    failure(lambda: llm.generate(prompt), RequestError, "prompt")


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", [1.5], [["a"]], ["a", 1], "\ud800"])
def test_prompt_of_the_wrong_kind(llm: LLM, prompt: Any) -> None:
    """Neither text nor ids."""
    failure(lambda: llm.generate(prompt), RequestError)


@pytest.mark.parametrize("token", [-1, 10**6, 2**40])
def test_tokens_outside_the_vocabulary(llm: LLM, token: int) -> None:
    """An id that has no embedding."""
    failure(lambda: llm.generate([1, token]), RequestError, str(token))
    failure(lambda: llm.logits([1, token]), RequestError, str(token))


def test_prompt_longer_than_the_context(llm: LLM) -> None:
    """The message gives both lengths; it is refused before any work."""
    failure(lambda: llm.generate([1] * 129, max_tokens=1), RequestError, "129", "128")
    failure(lambda: llm.logits([1] * 129), RequestError, "129", "128")


def test_errors_change_nothing(llm: LLM) -> None:
    """A refused request leaves the model as it was."""
    before = llm.generate(PROMPT, max_tokens=8, temperature=0, ignore_eos=True)
    failure(lambda: llm.generate([1] * 129), RequestError)
    after = llm.generate(PROMPT, max_tokens=8, temperature=0, ignore_eos=True)
    assert after.tokens == before.tokens


@pytest.mark.parametrize(
    "messages",
    [
        [],
        5,
        [[{"role": "user", "content": "x"}], {"role": "user", "content": "x"}],
        [{"content": "x"}],
        ["x"],
        None,
    ],
)
def test_messages(llm: LLM, messages: Any) -> None:
    """Chat messages are dicts with a role and a content."""
    failure(lambda: llm.chat(messages), RequestError)


def test_chat_without_a_template(folder: Path) -> None:
    """The remedy is generate()."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["chat_template"]
    path.write_text(json.dumps(settings))
    model = LLM(folder, threads=1)
    failure(lambda: model.chat([{"role": "user", "content": "hi"}]), RequestError, "template")
    model.generate(PROMPT, max_tokens=1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("threads", 0),
        ("threads", -2),
        ("threads", "two"),
        ("threads", 10**6),
        ("isa", "avx9"),
        ("context", 0),
        ("context", -5),
        ("kv_dtype", "f8"),
        ("format", "i3"),
        ("head", "float8"),
    ],
)
def test_options(folder: Path, argument: str, value: object) -> None:
    """Options of LLM itself."""
    options: dict[str, Any] = {argument: value}
    failure(lambda: LLM(folder, **options), SternaError, str(value))


def test_cli_errors(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Users' errors end with code 2 and a message, whatever the subcommand."""
    model = str(checkpoint("bitnet-multiply"))
    refused_by_cli("generate", "", "--model", model, words=("prompt",))
    refused_by_cli("generate", "x", "--model", str(tmp_path / "none"), words=("none",))
    refused_by_cli("generate", "x", "--model", model, "--temperature", "-1", words=("temperature",))
    refused_by_cli(
        "generate", "x", "--model", model, "--temperature", "nan", words=("temperature",)
    )
    refused_by_cli("generate", "x", "--model", model, "--threads", "0", words=("threads",))
    refused_by_cli("generate", "x" * 4000, "--model", model, words=("context",))
    refused_by_cli("generate", "x", "--model", model, words=("avx9",), STERNA_ISA="avx9")
    refused_by_cli(
        "generate", "x", "--model", model, words=("STERNA_THREADS", "many"), STERNA_THREADS="many"
    )
    refused_by_cli("generate", "x", "--nonsense")
    refused_by_cli(
        "perplexity", "--model", model, "--file", str(tmp_path / "none.txt"), words=("none.txt",)
    )
    refused_by_cli("bench", "e2e", "--model", "random:gpt-9", words=("gpt-9",))


def test_cli_with_spoilt_files(folder: Path) -> None:
    """A damaged file is reported with its name, and nothing of a text is printed."""
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused_by_cli("generate", "x", "--model", str(folder), words=("model.safetensors",))
    shutil.rmtree(folder)
    refused_by_cli("generate", "x", "--model", str(folder), words=(str(folder.name),))


def test_cli_works(checkpoint: Callable[[str], Path]) -> None:
    """The command works with sound input, so that the failures above mean something."""
    model = str(checkpoint("bitnet-multiply"))
    done = cli("generate", PROMPT, "--model", model, "--max-tokens", "4", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert cli("generate", PROMPT, "--model", model, "--nonsense").returncode == 2
