"""`examples/train_nano.py`: the recipe of the built-in model, on a few files and few steps."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command

EXAMPLE = Path(__file__).parent.parent / "examples" / "train_nano.py"
ASKED = (
    "--files 8 --steps 7 --batch 2 --length 64 --vocab-size 400 --hidden-size 64 "
    "--intermediate-size 128 --num-hidden-layers 1 --num-attention-heads 2 "
    "--num-key-value-heads 1 --max-position-embeddings 128 --save-every 3"
)


@pytest.fixture(scope="module")
def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("train_nano", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_from_scratch(
    recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The loss falls; what is told is what `sterna perplexity` says; interrupted, the same bits."""
    torch.set_num_threads(1)
    recipe.main([*ASKED.split(), "--out", str(tmp_path / "a")])
    told = capsys.readouterr().out.splitlines()
    losses = (tmp_path / "a" / "training" / "losses.tsv").read_text().splitlines()[1:]
    values = [float(line.split("\t")[1]) for line in losses]
    assert len(values) == 7
    assert sum(values[-3:]) / 3 < values[0] - 0.05
    assert "7 low-bit layers" in told[-2]
    model = tmp_path / "a" / "model"
    asked = ["--model", str(model), "--stdlib", "--limit", "1", "--json"]
    (row,) = json.loads(command("perplexity", *asked).stdout)
    assert row["format"] == "i2"
    assert told[-1] == f"held-out bits per byte {row['bits_per_byte']:.4f} (1 files)"

    clip = torch.nn.utils.clip_grad_norm_
    calls: list[int] = []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return clip(*args, **options)

    again = [*ASKED.split(), "--out", str(tmp_path / "b")]
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recipe.main(again)
    assert not (tmp_path / "b" / "model").exists()
    recipe.main(again)
    whole, resumed = (tmp_path / name / "model" / "model.safetensors" for name in "ab")
    assert whole.read_bytes() == resumed.read_bytes()
