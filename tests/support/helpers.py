"""Shared by several test files: the formats by discovery, and exact comparisons."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sterna import LLM, _native, formats
from sterna.cli import main
from sterna.engine import Engine
from sterna.errors import SternaError
from sterna.formats.scaled_floats import ScaledFloats

# The kernel units under test: all that run here; where STERNA_ISA forces one, that one alone, since
# such a run comes after one of all (.ci/run).
ISAS = [isa for isa in _native.isas() if isa == os.environ.get("STERNA_ISA", isa)]

# Formats whose weights have one scale, or one a row, or none; and those with scales in groups.
FORMATS = [name for name in formats.names() if not formats.get(name).scales.group]
GROUPED = [name for name in formats.names() if formats.get(name).scales.group]
# The levels of each integer format; the others hold floats.
LEVELS = {
    name: f.codebook.array
    for name, f in ((name, formats.get(name)) for name in FORMATS)
    if f.codebook is not None
}
INTEGER = [name for name in FORMATS if name in LEVELS]
# Formats of floats that are kept as they are; and of powers of two, with a scale for each row.
FLOAT = [
    name
    for name in FORMATS
    if not formats.get(name).scaled and not isinstance(formats.get(name), ScaledFloats)
]
POWERS = [name for name in FORMATS if name not in LEVELS and formats.get(name).scaled]


def powers(name: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Weights +-2^e of a format of POWERS, e within nine of 0."""
    f = formats.get(name)
    exponents = rng.integers(max(f.low, -9), min(f.high, 9) + 1, shape)
    return np.ldexp(rng.choice((-1.0, 1.0), shape), exponents).astype(np.float32)


def bits(array: np.ndarray) -> np.ndarray:
    """The bit patterns of float32 values, so that −0 and 0 differ."""
    assert array.dtype == np.float32
    return np.ascontiguousarray(array).view(np.uint32)


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal shape and equal bits."""
    assert got.shape == expected.shape
    np.testing.assert_array_equal(bits(got), bits(expected))


def failure(call: Callable[[], object], kind: type[SternaError], *words: str) -> str:
    """The message of the expected error: one printable line, with the words in it."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert message.isprintable(), message
    for word in words:
        assert word in message, message
    return message


def command(*args: str, stdin: bytes | None = None) -> Result:
    """The command line's answer."""
    return CliRunner().invoke(main, args, input=stdin, catch_exceptions=False)


def failed(result: Result, *words: str) -> None:
    """Exit code 2 and one line that has the words."""
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    for word in words:
        assert word in line, line


def cold(llm: LLM, engine: Engine | None = None) -> LLM:
    """The same LLM, with its engine or another, that finds nothing of earlier requests."""
    other = copy.copy(llm)
    other._attach(engine or llm.engine, None)
    return other


def add_token_beyond(folder: Path, text: str) -> None:
    """An added token without an embedding, the first id that the model has not."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    token = {**tokenizer["added_tokens"][0], "id": size, "content": text, "special": True}
    file.write_text(json.dumps({**tokenizer, "added_tokens": [*tokenizer["added_tokens"], token]}))
