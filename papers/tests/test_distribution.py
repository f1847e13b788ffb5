"""The distribution: its commands are part of `sterna`, and its units export their tables alone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from helpers import command
from objects import exported_symbols

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("words", [("tune",), ("bench", "figure"), ("bench", "peers")])
def test_commands_join(words: tuple[str, ...]) -> None:
    *group, name = words
    assert re.search(rf"^  {name} ", command(*group, "--help").stdout, re.MULTILINE)
    result = command(*words, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: sterna {' '.join(words)}")


def test_only_bindings_know_python() -> None:
    for path in ROOT.glob("native/**/*"):
        if path.suffix in (".h", ".cpp") and path.parent.name != "bindings":
            assert not re.search(r"#include <(nanobind|Python\.h)", path.read_text()), path


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils' nm")
def test_one_symbol_per_unit() -> None:
    """As in tests/test_layers.py: a weak symbol may be the copy that everybody gets."""
    objects = sorted(ROOT.glob("build/*/CMakeFiles/pot_*.dir/native/pot/*.o"))
    if not objects:
        pytest.skip("needs the objects of a build in this tree: run pip install ./papers here")
    for path in objects:
        unit = next(part for part in path.parts if part.endswith(".dir")).removesuffix(".dir")
        names = [name.lstrip("_") for name in exported_symbols(path)]
        assert names == [f"sterna_{unit}"], path
