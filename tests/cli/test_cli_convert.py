"""`sterna convert`, `quantize` and `verify`: what they print and their exit codes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint_factory as factory
import pytest
from click.testing import CliRunner, Result

from sterna.cli import main
from sterna.cli.progress import BESIDES, LEAST, _shortened


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return factory.write(tmp_path_factory.mktemp("models") / "llama", factory.RECIPES["llama-256"])


def test_convert_says_what_it_wrote_and_lost(llama: Path, tmp_path: Path) -> None:
    result = run("convert", "nano", tmp_path / "t5", "--format", "t5")
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 't5'}: 3.8 MB in " in result.output
    assert "lossless: all 25 matrices have the weights they had" in result.output
    result = run("convert", llama, tmp_path / "m.gguf", "--format", "gguf:Q8_0")
    assert result.exit_code == 0, result.output
    assert "LOSSY: 16 of 16 matrices were rounded, worst " in result.output
    result = run("convert", llama, tmp_path / "m.gguf", "--format", "gguf:Q8_0")
    assert result.exit_code == 2
    result = run("convert", llama, tmp_path / "m.gguf", "--format", "gguf:F16", "--force", "--json")
    (row,) = json.loads(result.output)
    assert row["bytes"] == (tmp_path / "m.gguf").stat().st_size
    assert (row["matrices"], row["rounded"], row["format"]) == (16, 16, "gguf:F16")
    assert 0 < row["worst_relative_rms_error"] < 2.0**-11


def test_quantize_has_a_row_for_each_matrix(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("quantize", llama, tmp_path / "a", "--format", "i4", "--scales", "group:64")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    (down,) = [line for line in lines if line.startswith("model.layers.1.mlp.down_proj ")]
    assert down.split()[1:4] == ["256x512", "f32", "i4:g64"]
    assert 15 < float(down.split()[-1]) < 30
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run("quantize", llama, tmp_path / "n", "--format", "i4", "--scales", "group:64")
    assert down in narrow.output.splitlines()  # no line is cut
    monkeypatch.undo()
    (table,) = [line for line in lines if line.startswith("model.embed_tokens ")]
    assert table.split()[1:] == ["320x256", "f32", "f32", "exact"]
    result = run("quantize", llama, tmp_path / "b", "--format", "i2", "--head", "i8", "--json")
    rows = json.loads(result.output)
    assert {row["to"] for row in rows} == {"i2", "i8"}
    errors = {row["tensor"]: row["relative_rms_error"] for row in rows}
    assert errors["model.embed_tokens"] < 0.01 < 0.3 < errors["model.layers.0.self_attn.q_proj"]
    for wrong in (["--format", "i9"], ["--format", "i2", "--scales", "group:7"]):
        assert run("quantize", llama, tmp_path / "c", *wrong).exit_code == 2
    result = run("quantize", "nano", tmp_path / "d", "--format", "t5", "--json")
    assert all(row["exact"] and row["snr_db"] is None for row in json.loads(result.output))


def test_verify_has_exit_codes(llama: Path, tmp_path: Path) -> None:
    run("convert", "nano", tmp_path / "m", "--format", "i2")
    result = run("verify", tmp_path / "m")
    assert result.exit_code == 0
    assert "75 tensors, 3.4 MB, every SHA-256 as recorded" in result.output
    path = tmp_path / "m" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 64
    path.write_bytes(data)
    result = run("verify", tmp_path / "m")
    assert result.exit_code == 1
    assert result.output.startswith("DAMAGED ")
    result = run("verify", tmp_path / "m", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.output)
    assert [row["status"] for row in rows].count("damaged") == 1
    result = run("verify", llama)
    assert result.exit_code == 0
    assert "21 tensors have no recorded hash" in result.output
    assert run("verify", tmp_path / "nothing").exit_code == 2
    other = shutil.copytree(llama, tmp_path / "other")
    text = (other / "config.json").read_text()
    (other / "config.json").write_text(text.replace("LlamaForCausalLM", "Other"))
    result = run("verify", other)
    assert (result.exit_code, "could not be checked" in result.output) == (2, True)
    assert "OK" not in result.output
    result = run("verify", other, "--json")
    assert (result.exit_code, json.loads(result.output)[-1]["status"]) == (2, "unchecked")
    data = path.read_bytes().replace(b"sterna.config.sha256", b"sterna.config.sha25_")
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 64]) + data[-2:])  # as it was
    result = run("verify", tmp_path / "m")
    assert (result.exit_code, "settings have none" in result.output) == (0, True)


def test_a_terminal_gets_a_bar(llama: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "sterna", "convert", str(llama), str(tmp_path / "m")],
        stderr=follower, stdout=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(follower)
    seen = b""
    while chunk := _read(leader):
        seen += chunk
    assert done.returncode == 0
    assert "lossless" in done.stdout
    assert b"converting" in seen
    assert b"million weights" in seen


def test_a_bar_has_room_next_to_a_long_path() -> None:
    """The beginning of a path is left out, and the bar, its share and its time are seen."""
    path = "measuring /home/somebody/models/of/many/kinds/llama-1b-instruct"
    assert _shortened(path, 80) == path
    assert _shortened(path, 80 - BESIDES) == "measuring …a-1b-instruct"
    assert len(_shortened("measuring " + "x" * 99, 5)) == LEAST


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end is closed
        return b""
