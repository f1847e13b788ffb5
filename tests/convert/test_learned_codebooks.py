"""`codebook="learn"`: layers get tables of their own, which run, repeat and lose less."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_same_bits, command, failed, failure

from sterna import LLM, loading
from sterna.convert import convert
from sterna.engine import Engine
from sterna.errors import RequestError
from sterna.server.model_description import quantization

TOKENS = np.arange(12)[None]


def logits(folder: Path) -> np.ndarray:
    return Engine(loading.load(folder, cached=False), threads=1).logits(TOKENS)[0]


@pytest.mark.parametrize(
    ("model", "format"),
    [("llama-256", "nf4"), ("llama-256", "nf2:g32"), ("qwen3-moe", "nf4:g32")],
)
def test_layers_of_a_model(
    checkpoint: Callable[[str], Path], tmp_path: Path, model: str, format: str
) -> None:
    source = checkpoint(model)
    with pytest.warns(RuntimeWarning) if format == "nf2:g32" else warnings.catch_warnings():
        plain = convert(source, tmp_path / "plain", format)
        made = convert(source, tmp_path / "made", format, codebook="learn")
        convert(source, tmp_path / "again", format, codebook="learn", threads=2)
    assert sum(
        loss.relative_rms < before.relative_rms for loss, before in zip(made, plain, strict=True)
    ) > (0.6 * len(made))
    names = {loss.format for loss in made if not loss.exact}
    assert any(name.startswith(("lut4-", "lut2-")) for name in names)
    assert len(names) > 1 or format == "nf2:g32"  # its tables are few
    assert_same_bits(logits(tmp_path / "made"), logits(tmp_path / "again"))
    assert np.isfinite(logits(tmp_path / "made")).all()


def test_levels_that_are_not_kept_learn_too(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Weights of a packed model are rounded anew, unless the format has their levels."""
    convert(checkpoint("llama-256"), tmp_path / "q4_0", "q4_0")
    anew = convert(tmp_path / "q4_0", tmp_path / "nf4", "nf4", codebook="learn")
    assert {loss.format[:5] for loss in anew if not loss.exact} == {"lut4-"}
    convert(checkpoint("llama-256"), tmp_path / "plain", "nf4")
    kept = convert(tmp_path / "plain", tmp_path / "made", "nf4", codebook="learn")
    assert all(loss.exact for loss in kept)


@pytest.mark.parametrize("head", ["nf4", "fp4", "lut4-8199adc0cfdeebf6010d192635465a71"])
def test_heads(checkpoint: Callable[[str], Path], tmp_path: Path, head: str) -> None:
    """Embeddings and heads are in tables, too."""
    convert(checkpoint("llama-256"), tmp_path / "made", "nf4", head)
    weights = loading.load(tmp_path / "made", cached=False).weights.modules
    assert weights["model.embed_tokens"].format == head
    assert np.isfinite(logits(tmp_path / "made")).all()


def test_the_command(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source, out = str(checkpoint("llama-256")), str(tmp_path / "out")
    shown = command("quantize", source, out, "--codebook", "learn").stdout
    assert "lut4:g64" in shown
    weights = loading.load(out, cached=False).weights.modules.values()
    assert any(weight.format.name.startswith("lut4-") for weight in weights)


def test_what_has_no_table(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = checkpoint("llama-256")
    for format in (None, "i4", "gguf:Q4_0"):
        place = tmp_path / ("out.gguf" if format and ":" in format else "out")
        learn = partial(convert, source, place, format, codebook="learn")
        failure(learn, RequestError, "codebook: learn needs a format")
    failure(lambda: convert(source, tmp_path / "o", "nf4", codebook="x"), RequestError, "codebook")
    wrong = ("--bpw", "4", "--codebook", "learn")
    failed(command("quantize", str(source), str(tmp_path / "o"), *wrong), "--codebook", "--bpw")


def test_levels_are_in_no_line(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Names of formats with 32 digits are for files; lines have bits a weight next to the name."""
    src, folder, text = checkpoint("llama"), tmp_path / "m", tmp_path / "text"
    text.write_text("a text of some words")
    convert(src, folder, "nf4:g32", codebook="learn")
    lines = [
        command("quantize", str(folder), str(tmp_path / "o"), "--format", "q8_0"),
        command("info", str(folder)),
        command("perplexity", "--model", str(folder), "--file", str(text)),
        command("compare", str(src), str(folder), "--file", str(text)),
    ]
    for result in lines:
        assert result.exit_code == 0, result.output
        assert "lut4" in result.output
        assert "lut4-" not in result.output
    llm = LLM(folder, cache=False)
    bits = f"lut4:g32, {llm.info()['bits']:.3g} bits a weight"
    assert all(bits in result.output for result in lines[2:])
    assert "activations f32" in lines[3].output
    assert quantization(llm) == f"LUT4:G32, {llm.model.bits:.1f} bits"


def test_bits_of_files(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """`sterna info` counts weights by their formats; other programs' checkpoints do not say it."""
    src, folder, file = checkpoint("llama"), tmp_path / "m", tmp_path / "m.gguf"
    convert(src, folder, "q4_0", "q8_0")
    convert(src, file, "gguf:Q8_0")
    rows = [json.loads(command("info", str(at), "--json").stdout)[0] for at in (src, folder, file)]
    assert [row["bits"] for row in rows] == [None, LLM(folder, cache=False).info()["bits"], 8.5]
    n_weights = LLM(src, cache=False).info()["n_params"]
    assert [row["n_weights"] for row in rows[1:]] == [n_weights] * 2
    assert rows[2]["formats"] == {"Q8_0": n_weights}
    assert list(rows[1]["formats"]) == ["q4_0", "q8_0"]
    assert "weights" not in command("info", str(src)).output.split("a token")[0]
    assert re.search(
        r"weights +0.\d million, 8.5 bits each: Q8_0 100%", command("info", str(file)).output
    )
