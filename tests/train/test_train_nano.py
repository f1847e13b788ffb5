"""`examples/train_nano.py`: the recipe of the built-in model, on a few files and few steps."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command

EXAMPLES = Path(__file__).parents[2] / "examples"
ASKED = (
    "--files 8 --steps 7 --last 4 --tokens 256 --plain --vocab-size 400 --hidden-size 64 "
    "--intermediate-size 128 --num-hidden-layers 1 --num-attention-heads 2 "
    "--num-key-value-heads 1 --max-position-embeddings 128 --save-every 3"
)


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("train_nano")


def test_a_run_from_scratch(
    recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The loss falls; what is told is what `sterna perplexity` says; interrupted, the same bits."""
    torch.set_num_threads(1)
    other = tmp_path / "also" / "other-1.0"
    other.mkdir(parents=True)
    (other / "a.py").write_text("def double(x):\n    return x + x\n\n\n" * 99)
    asked = [*ASKED.split(), "--also", str(other.parent)]
    recipe.main([*asked, "--out", str(tmp_path / "a")])
    told = capsys.readouterr().out.splitlines()
    logs = [tmp_path / "a" / name / "losses.tsv" for name in ("training", "training-last")]
    lines = [line for log in logs for line in log.read_text().splitlines()[1:]]
    values = [float(line.split("\t")[1]) for line in lines]
    assert len(values) == 7 + 4
    assert sum(values[-3:]) / 3 < values[0] - 0.05
    facts = json.loads((tmp_path / "a" / "facts.json").read_text())
    assert facts["tokens_seen"] == (7 + 4) * 256
    assert facts["other_files"] == 1
    assert "7 low-bit layers" in told[-2]
    model = tmp_path / "a" / "model"
    measured = ["--model", str(model), "--stdlib", "--limit", "1", "--json"]
    (row,) = json.loads(command("perplexity", *measured).stdout)
    assert row["format"] == "i2"
    assert told[-1] == f"held-out bits per byte {row['bits_per_byte']:.4f} (1 files)"

    clip = torch.nn.utils.clip_grad_norm_
    calls: list[int] = []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 9:  # in the last stage
            raise KeyboardInterrupt
        return clip(*args, **options)

    again = [*asked, "--out", str(tmp_path / "b")]
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recipe.main(again)
    assert not (tmp_path / "b" / "model").exists()
    recipe.main(again)
    whole, resumed = (tmp_path / name / "model" / "model.safetensors" for name in "ab")
    assert whole.read_bytes() == resumed.read_bytes()


def test_the_first_stage_may_be_ended_early(recipe: Any, tmp_path: Path) -> None:
    """--finish goes on from the state that is there, and counts what that had seen."""
    torch.set_num_threads(1)
    asked = [*ASKED.split(), "--out", str(tmp_path / "a"), "--last", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "run", _ended_after(recipe.run, 5))
        with pytest.raises(KeyboardInterrupt):
            recipe.main(asked)
    recipe.main([*asked, "--finish"])
    facts = json.loads((tmp_path / "a" / "facts.json").read_text())
    assert facts["tokens_seen"] == (3 + 2) * 256


def _ended_after(run: Any, steps: int) -> Any:
    def ended(*args: Any) -> Any:
        *others, tell, start = args

        def progress(step: int, loss: float) -> None:
            tell(step, loss)
            if step == steps:
                raise KeyboardInterrupt

        return run(*others, progress, start)

    return ended


def test_what_is_held_out_is_never_trained_on(recipe: Any, tmp_path: Path) -> None:
    """Copies, vendored parts and copies with other names are dropped; what is their own stays."""
    corpus = sys.modules["nano_corpus"]
    plain = corpus.read_corpus(40)
    held = max(plain.held, key=len)
    own = "".join(f"def function_number_{a}(argument):\n    pass\n" for a in range(300))
    lines = held.splitlines(keepends=True)
    texts = {
        "copy": held, "part": own + "".join(lines[20:80]), "own": own, "table": "1, 2, 3\n" * 999,
        "scattered": own + "".join(x for line in corpus.telling(held)[::2] for x in (line, "\n")),
        "stdlib": max(plain.stdlib, key=len), "tests/test_own": own + "# another\n",
        "twice/own": own,
    }  # fmt: skip
    for name, text in texts.items():
        path = tmp_path / "also" / "other-1.0" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = corpus.read_corpus(40, [tmp_path / "also"])
    assert found.others == [own]
    assert found.dropped == 3
    assert found.held == plain.held
    assert found.stdlib == plain.stdlib
    assert found.digest != plain.digest
