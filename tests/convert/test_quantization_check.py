"""A format that would ruin a model warns before it is written; layers left alone do not warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoint_factory
import pytest
from checkpoint_factory import RECIPES
from helpers import command

from sterna.convert import convert


@pytest.mark.parametrize("format", ["t5", "i2:g64", "i1"])
def test_few_levels_of_floats(
    checkpoint: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    with pytest.warns(RuntimeWarning, match=f"not trained for {format}.*nothing is left"):
        convert(checkpoint("llama-256"), tmp_path / "out", format)


def test_few_levels_where_only_some_rows_are_whole_blocks(tmp_path: Path) -> None:
    """As in SmolLM2: 576 columns take q4_0 in place of tq2_0, and 1,536 do not."""
    recipe = replace(RECIPES["llama-256"], hidden=192, intermediate=512)
    folder = checkpoint_factory.write(tmp_path / "model", recipe)
    with pytest.warns(RuntimeWarning, match="not trained for tq2_0.*nothing is left"):
        convert(folder, tmp_path / "out", "tq2_0")


@pytest.mark.parametrize(("model", "format"), [("llama-256", "i4"), ("bitnet-online", "t5")])
def test_no_word_of_what_keeps_a_model(
    checkpoint: Callable[[str], Path], tmp_path: Path, model: str, format: str
) -> None:
    """Four bits of floats; and masters of a model that was trained for three levels."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        convert(checkpoint(model), tmp_path / "out", format)


def test_the_command_says_it_first(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = str(checkpoint("llama-256"))
    with pytest.warns(RuntimeWarning, match="not trained for t5"):
        command("quantize", path, str(tmp_path / "out"), "--format", "t5")
    assert (tmp_path / "out").is_dir()
    assert "iq4_nl" in command("quantize", path, str(tmp_path / "four")).stdout  # the default
