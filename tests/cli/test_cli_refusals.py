"""Paths, settings and sizes that commands refuse: at once, in a line that names what was given."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import command, failed, failure
from waits import HANGS_S

from sterna import LLM
from sterna.checkpoints import cache, hub
from sterna.checkpoints.resolve import BUILT_IN
from sterna.cli import main
from sterna.cli.progress import progress_bar
from sterna.cli.terminal import status
from sterna.errors import RequestError

posix = pytest.mark.skipif(os.name == "nt", reason="needs pipes and devices as files")
READERS = [
    ("perplexity", "--file"), ("eval", "hellaswag", "--data"), ("compare", "nano", "--file"),
]  # fmt: skip


@posix
@pytest.mark.parametrize("arguments", READERS, ids=lambda arguments: arguments[0])
def test_what_is_no_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A pipe that nobody writes to would never be opened, and a device never end."""
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "pipe"), (tmp_path, "folder"), ("/dev/zero", "device")):
        failed(command(*arguments, str(path)), str(path), "regular file", kind)
    failed(command(*arguments, str(tmp_path / "none")), "none", "No such file")


@posix
def test_chat_saves_and_loads_files_alone(tmp_path: Path) -> None:
    """The error has the path that was typed, and what is there stays as it was."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    def typed(text: str, *words: str) -> None:
        result = CliRunner().invoke(main, ["chat"], input=text + "\n", catch_exceptions=False)
        failed(result, *words)
        assert ".tmp" not in result.stderr

    for name in ("pipe", "folder"):
        typed(f"/save {tmp_path / name}", f"{tmp_path / name}: ", "regular file", name)
        typed(f"/load {tmp_path / name}", f"{tmp_path / name}: ", "regular file", name)
    typed(f"/save {tmp_path}/none/x", f"{tmp_path}/none/x: ", "No such file")
    typed("/save ~no-such-user/x", "~no-such-user/x: ", "No such file")
    typed(f"/save {'x' * 300}", "xxx: ", "too long")
    typed("/save a\0b", "/save: needs a file's name")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_a_context_that_is_too_small() -> None:
    """It is said how many positions are needed, and how many the model has."""
    failed(command("generate", "def f(x):", "--context", "1"), "1 tokens", "or more", "1024")
    failed(command("generate", "x", "--context", "0"), "a whole number in 1..", "got 0")
    failed(command("perplexity", "--stdlib", "--limit", "1", "--context", "1"), "at least 2", "1;")
    failed(command("generate", "x" * 9000), "1024", "shorten it")


@pytest.mark.parametrize("address", ["foo", "http://", "https://host:port", "ftp://host", "a:b@c"])
def test_hf_endpoint(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is named, less a password that may stand in it."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    message = failure(
        lambda: hub.pull(hub.HubName.parse("org/name")), RequestError, "HF_ENDPOINT", "https://"
    )
    assert "a:b" not in message


def test_a_built_in_model_has_its_name(tmp_path: Path) -> None:
    """A conversion's message does not name the path of the package."""
    pytest.importorskip("gguf")
    target = str(tmp_path / "x.gguf")
    result = command("convert", "nano", target, "--format", "gguf:F16")
    failed(result, "nano: architecture")
    assert str(BUILT_IN["nano"]) not in result.stderr


def test_verify_reads_what_a_start_reads(tmp_path: Path) -> None:
    """Sound weights with a damaged tokenizer, template or config.json are no sound model."""
    assert command("convert", "nano", str(tmp_path / "whole")).exit_code == 0
    assert command("verify", str(tmp_path / "whole")).exit_code == 0
    spoilt: dict[str, Callable[[Path], object]] = {
        "tokenizer.json": lambda path: path.write_text("{"),
        "tokenizer_config.json": lambda path: path.write_text("[]"),
        "generation_config.json": lambda path: path.write_text("nonsense"),
        "chat_template.jinja": lambda path: path.write_bytes(b"\xff"),
        "config.json": lambda path: path.write_text(path.read_text().replace("{", "", 1)),
    }
    for name, spoil in spoilt.items():
        folder = tmp_path / name.replace(".", "-")
        shutil.copytree(tmp_path / "whole", folder)
        spoil(folder / name)
        result = command("verify", str(folder))
        assert (result.exit_code, "DAMAGED" in result.stdout) == (1, True), name
        assert name in result.stdout
    (tmp_path / "whole" / "tokenizer.json").unlink()
    assert command("verify", str(tmp_path / "whole")).exit_code == 1


def test_convert_refuses_what_does_not_start(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """With the words of a start, before anything is written; what has no tokenizer is converted."""
    spoilt = {
        "tokenizer.json": b"{", "tokenizer_config.json": b"[]", "chat_template.jinja": b"\xff",
        "generation_config.json": b"nonsense",
    }  # fmt: skip
    for name, data in spoilt.items():
        folder = tmp_path / name.replace(".", "-")
        shutil.copytree(checkpoint("llama-256"), folder)
        (folder / name).write_bytes(data)
        start = command("generate", "x", "--model", str(folder)).stderr
        for target, format in (("m", "i8"), ("m.gguf", "gguf:Q8_0")):
            result = command("convert", str(folder), str(tmp_path / target), "--format", format)
            failed(result, name)
            assert result.stderr == start
            assert not (tmp_path / target).exists()
    shutil.copytree(checkpoint("llama-256"), tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    assert command("convert", str(tmp_path / "bare"), str(tmp_path / "m")).exit_code == 0


def test_names_with_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that looks like rich's markup is printed as it is, in tables and bars as well."""
    monkeypatch.chdir(tmp_path)
    Path("[").mkdir()
    target, text = "[/]m[b]", "[/]t[b]"
    result = command("quantize", "nano", target, "--format", "i1")
    assert (result.exit_code, target in result.stdout) == (0, True), result.output
    assert "LOSSY: " in result.stdout
    Path(text).write_text("def f(x): return x")
    for arguments in (("verify", target), ("perplexity", "--file", text)):
        result = command(*arguments)
        assert (result.exit_code, arguments[-1] in result.stdout) == (0, True), result.output

    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(f"reading {target}", "MB") as progress:
        progress(1, 2)
    with status(f"loading {target}") as say:
        say(f"still {target}")
    assert f"reading {target}" in terminal.getvalue()


@posix
def test_a_pipe_as_a_model(tmp_path: Path) -> None:
    """Refused, with a cache as without."""
    os.mkfifo(tmp_path / "m.gguf")
    for place in ("off", str(tmp_path / "cache")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STERNA_CACHE", place)
            failed(command("generate", "x", "--model", str(tmp_path / "m.gguf")), "regular file")


def test_where_packed_copies_come_from(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's path is recorded with its copy; copies of earlier versions are listed without."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    source = checkpoint("bitnet-multiply")
    store = LLM(source, threads=1).engine.model.store
    assert store is not None
    entry = store.wait(HANGS_S)
    assert entry is not None

    def packed_from() -> str | None:
        rows = json.loads(command("models", "--json").stdout)
        (name,) = (row["packed_from"] for row in rows if row["source"] == "cache")
        return name

    assert packed_from() == str(source) == cache.source_of(entry)
    assert source.name in command("models").stdout
    LLM(source, threads=1)  # the copy runs with the file next to it
    (entry / "source.path").write_bytes(b"\x1b[2J")
    assert packed_from() is None
    (entry / "source.path").unlink()
    assert packed_from() is None
    assert "?" in command("models").stdout


@posix
def test_a_warning_is_one_line(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Without the file and the line of Sterna that gave it, also at the end of the process."""
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "sterna", "generate", "x", "--max-tokens", "2",
         "--model", str(checkpoint("bitnet-multiply"))],
        env=os.environ | {"STERNA_CACHE": str(tmp_path / "file" / "cache")},
        capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("sterna: warning: cache not written: ")
    assert ".py" not in line


def test_the_form_of_warnings_is_that_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's users keep Python's own, and recorders of warnings see them all."""
    formatter = warnings.formatwarning
    monkeypatch.setattr(warnings, "formatwarning", formatter)  # given back after the test
    assert command("formats", "--no-measure").exit_code == 0
    text = warnings.formatwarning("a\nb", RuntimeWarning, "x.py", 1)
    assert text == "sterna: warning: a b\n"
