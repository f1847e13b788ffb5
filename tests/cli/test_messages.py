"""Errors hold no more of a value than a terminal's few lines, and no numbers of the system."""

from __future__ import annotations

import errno
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_factory import raw_file
from helpers import command, failure
from waits import HANGS_S

import sterna
from sterna import LLM
from sterna.checkpoints import cache
from sterna.errors import (
    ModelFormatError,
    RequestError,
    SternaError,
    UnsupportedModelError,
    brief,
    reason,
    shown,
)
from sterna.runtime import resolve_threads
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

LONG = "x" * 100_000
MOST = 2000  # a message: its words, a path, a list of names, and values of 200 characters


class _Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    "value",
    [LONG, LONG.encode(), [LONG] * 9, list(range(10**6)), {LONG: [LONG]}, 10**5000, (10**5000,),
     np.zeros((500, 500)), _Unprintable(), "\x1b" * 300, {i: {i} for i in range(1000)}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_are_cut(value: object) -> None:
    for text in (shown(value), "" if isinstance(value, _Unprintable) else brief(value)):
        assert len(text) <= 200
        assert text.isprintable()


def test_short_values_are_whole() -> None:
    for value in ("avx9", 5, 1.5, True, None, [1, 2], ("a",), b"x", {"a": 1}):
        assert shown(value) == repr(value)
        assert brief(value) == str(value)


def test_no_message_writes_values_by_itself() -> None:
    """`{value!r}` has no bound: `shown` has."""
    package = Path(sterna.__file__).parent
    modules = [p.name for p in sorted(package.rglob("*.py")) if re.search(r"!r\}", p.read_text())]
    assert modules == ["__init__.py"]  # an AttributeError


def test_a_message_has_an_end() -> None:
    """However many values it has; what to do stays."""
    message = str(SternaError(f"{LONG}: must be short, but got {LONG}; cut it"))
    assert len(message) <= 4000
    assert message.endswith("; cut it")


def test_values_of_files(folder: Path, tmp_path: Path) -> None:
    """A hundred thousand characters in the place of a name."""
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    for field in ("architectures", "hidden_act", "hidden_size", "quantization_config"):
        value: Any = {"architectures": [LONG], "quantization_config": {"quant_method": LONG}}
        path.write_text(json.dumps({**whole, field: value.get(field, LONG)}))
        message = failure(lambda: LLM(folder), SternaError)
        assert len(message) < MOST, (field, len(message))
    file = tmp_path / "x.gguf"
    raw_file(file, {"general.architecture": LONG}, [])
    assert len(failure(lambda: LLM(file), UnsupportedModelError)) < MOST


def test_values_of_callers(folder: Path) -> None:
    for name in ("format", "head", "kv_dtype", "isa", "cores"):
        options: dict[str, Any] = {name: LONG}
        message = failure(lambda options=options: LLM(folder, **options), SternaError)
        assert len(message) < MOST, name
    for option in ("--stop", "--seed", "--kv-dtype", "--context"):
        result = command("generate", "x", option, LONG, "--cores", LONG)
        assert result.exit_code == 2
        assert len(result.stderr) < 4100, (option, len(result.stderr))


def test_the_systems_reasons_are_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not `[Errno 20] Not a directory: 'path'`."""
    full = os.strerror(errno.ENOSPC)
    assert reason(OSError(errno.ENOSPC, full, "f")) == full
    assert reason(ValueError()) == "ValueError"
    (tmp_path / "file").touch()
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "file"))
    key = f"x-{'0' * 20}-{'0' * 20}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.store_behind(key, lambda path: None).wait(HANGS_S) is None
    (said,) = [str(w.message) for w in caught]
    assert said == f"cache not written: {tmp_path / 'file'}: {os.strerror(errno.ENOTDIR)}" or (
        said == f"cache not written: {tmp_path / 'file'}: {os.strerror(errno.EEXIST)}"
    )


def test_a_tokenizer_without_rights_is_not_to_be_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        message = failure(lambda: Tokenizer(folder), RequestError, "Permission denied")
    assert message.endswith("check the path and its rights")
    (folder / "tokenizer.json").unlink()
    assert failure(lambda: Tokenizer(folder), ModelFormatError).endswith("repository")


@pytest.mark.parametrize("cores", ["0,0", "0-0,0", "0,0-1"])
def test_a_cpu_comes_once(cores: str) -> None:
    failure(lambda: resolve_threads(None, cores), RequestError, "each once", cores)


def test_a_stop_that_no_answer_can_have() -> None:
    """Answers are Unicode."""
    failure(lambda: SamplingParams(stop=("a", "b\ud800")), RequestError, "Unicode", "ud800")
