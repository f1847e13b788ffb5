"""What leaves nothing of a model is told before it is written; what is left alone is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import command

from sterna.convert import convert


@pytest.mark.parametrize("format", ["t5", "i2:g64", "i1"])
def test_few_levels_of_floats(
    checkpoint: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    with pytest.warns(RuntimeWarning, match=f"not trained for {format}.*nothing is left"):
        convert(checkpoint("llama-256"), tmp_path / "out", format)


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
