"""`sterna train` and its parts: chats, rows, resuming after an interruption, packed models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import command, failed, failure

from sterna import LLM
from sterna.checkpoints.resolve import BUILT_IN
from sterna.errors import ModelFormatError, NonFiniteError, RequestError
from sterna.evaluate.perplexity import perplexity
from sterna.evaluate.tasks import question_scores, read_questions
from sterna.integrations.training import trainable
from sterna.torch import SternaLinear, accelerate
from sterna.train.chats import IGNORED, Example, examples, rows_of
from sterna.train.loop import TrainingOptions, train
from sterna.train.packed_export import export
from sterna.train.torch_model import TorchModel, evaluate_both
from sterna.train.unpacking import unpack_for_training

ASK = {"role": "user", "content": "Hello"}
CHAT = [ASK, {"role": "assistant", "content": "Good day"}]


def written(file: Path, *items: Any) -> Path:
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    return file


def test_what_is_trained(tmp_path: Path) -> None:
    """Answers, with their end, and nothing else; a text from its second token on."""
    llm = LLM("nano", threads=1)
    two = [*CHAT, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Night"}]
    file = written(tmp_path / "a.jsonl", {"messages": two}, {"text": "def f(): pass"})
    chat, text = examples(file, llm.tokenizer, llm.template)
    answers = [t for t, kept in zip(chat.tokens, chat.trained, strict=True) if kept]
    assert llm.tokenizer.decode(answers, skip_special=False) == "Good dayNight<|end|>"
    rows = rows_of([chat, text, Example([7] * 70, [True] * 70)], 64)
    assert rows.cut == 1
    assert rows.tokens.shape == (2, 64)
    n, m = len(chat.tokens), len(text.tokens)
    assert rows.positions[0, : n + m].tolist() == [*range(n), *range(m)]
    assert rows.labels[0, n] == IGNORED
    assert rows.labels[0, n + 1 : n + m].tolist() == text.tokens[1:]
    assert set(rows.labels[0, n + m :].tolist()) == {IGNORED}
    kept = rows.labels[0, :n] != IGNORED
    assert rows.tokens[0, :n][kept].tolist() == answers


def test_examples_of_a_row_see_themselves_alone(checkpoint: Callable[[str], Path]) -> None:
    """Two in a row have the logits that each has by itself."""
    model = trainable(checkpoint("bitnet-multiply")).eval()
    found = [Example([5, 6, 7, 8], [True] * 4), Example([9, 10, 11], [True] * 3)]
    rows = rows_of(found, 8)
    with torch.no_grad():
        both = model(rows.tokens, position_ids=rows.positions, use_cache=False).logits[0]
        alone = [model(torch.tensor([e.tokens]), use_cache=False).logits[0] for e in found]
    torch.testing.assert_close(both[:7], torch.cat(alone), rtol=0, atol=2e-2 * both.abs().max())


def test_thawed_layers_are_what_they_were() -> None:
    """Levels to the bit, scales to a float's last: nano in training computes what nano does."""
    source, trainable_model = (trainable(BUILT_IN["nano"]) for _ in range(2))
    for layer in source.modules():
        assert not isinstance(layer, SternaLinear)
    name = "model.layers.0.mlp.down_proj"
    packed = LLM("nano", threads=1).engine.model.weights.modules[name]
    layer = trainable_model.get_submodule(name)
    got = SternaLinear(packed)
    x = torch.randn(3, packed.K)
    torch.testing.assert_close(layer(x), got(x), rtol=3e-7, atol=0)
    accelerate(trainable_model, "q8_0", skip=("lm_head",))
    model = torch.nn.Sequential(SternaLinear(packed), torch.nn.Linear(packed.M, 64))
    accelerate(model, "i8")
    failure(lambda: unpack_for_training(model), RequestError, "1", "i8")


def test_a_module_and_its_export_have_one_score(tmp_path: Path) -> None:
    """Perplexity of torch's nano and of Sterna's: the same but where sums move an activation."""
    llm = LLM("nano", threads=1, kv_dtype="f32")
    model = trainable(BUILT_IN["nano"])
    export(model, tmp_path / "out", BUILT_IN["nano"], head="bf16")
    exported = LLM(str(tmp_path / "out"), threads=1, kv_dtype="f32")
    texts = ["def add(a, b):\n    return a + b\n", "import os\n\nfor name in os.listdir('.'):\n"]
    scored = TorchModel(model, llm.tokenizer)
    found = [perplexity(one, texts) for one in (scored, exported, llm)]
    assert {p.n_tokens for p in found} == {found[0].n_tokens}
    np.testing.assert_allclose([p.perplexity for p in found], found[0].perplexity, rtol=5e-3)
    assert model.training is False
    failure(lambda: TorchModel(torch.nn.ReLU(), llm.tokenizer), RequestError, "ReLU")


def test_an_interrupted_run_goes_on_to_the_same_bits(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Stopped between two states, and begun again: parameters and losses of a run without that."""
    source = checkpoint("bitnet-online")
    rows = rows_of([Example([3 + i, 4 + i, 5 + i, 6], [True] * 4) for i in range(6)], 8)
    settings = TrainingOptions(6, lr=1e-2, batch=2, checkpointing=True)

    class Stop(Exception):
        pass

    def stop(step: int, loss: float) -> None:
        if step == 5:
            raise Stop

    whole, halves = trainable(source), trainable(source)
    losses = train(whole, rows, settings, tmp_path / "whole", 2)
    assert losses[-1] < losses[0]
    with pytest.raises(Stop):
        train(halves, rows, settings, tmp_path / "halves", 2, stop)
    again = trainable(source)
    assert train(again, rows, settings, tmp_path / "halves", 2) == losses
    for (name, a), (_, b) in zip(whole.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    other = TrainingOptions(6, lr=2e-2, batch=2)
    failure(
        lambda: train(again, rows, other, tmp_path / "halves"), RequestError, "state.pt", "another"
    )
    (tmp_path / "halves" / "state.pt").write_bytes(b"PK")
    failure(lambda: train(again, rows, settings, tmp_path / "halves"), RequestError, "state.pt")
    with torch.no_grad():
        next(again.parameters()).fill_(torch.inf)
    failure(lambda: train(again, rows, settings, tmp_path / "x"), NonFiniteError)


def test_the_command(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A packed model learns a chat by heart, and answers it so; a float one takes a method."""
    chats = written(tmp_path / "chats.jsonl", {"messages": CHAT})
    source, out = checkpoint("bitnet-multiply"), tmp_path / "out"
    options = ("--epochs=60", "--lr=0.01", "--length=32", "--threads=1")
    result = command("train", str(source), str(chats), str(out), *options)
    assert result.exit_code == 0, result.output
    assert "60 steps" in result.output
    assert "14 low-bit layers" in result.output
    assert LLM(str(out)).chat([ASK], max_tokens=8, temperature=0).text.strip() == "Good day"
    assert len((tmp_path / "out.training" / "losses.tsv").read_text().splitlines()) == 61
    failed(command("train", str(source), str(chats), str(out)), "out", "empty")
    floats, two = checkpoint("qwen2"), tmp_path / "two"
    failed(command("train", str(floats), str(chats), str(two)), "method", "bitlinear")
    failed(command("train", str(source), str(chats), str(two), "--method=s3"), "method", "already")
    result = command("train", str(floats), str(chats), str(two), "--method=pareto-4", "--length=32")
    assert result.exit_code == 0, result.output
    assert LLM(str(two)).engine.model.format == "i4"


@pytest.mark.parametrize(
    ("line", "kind", "word"),
    [
        ("{", ModelFormatError, "line 1"),
        ("[]", ModelFormatError, "line 1"),
        ('{"text": 1}', ModelFormatError, "neither"),
        ("", ModelFormatError, "none"),
        ('{"messages": [{"role": "user", "content": "a"}]}', RequestError, "answer"),
        ('{"messages": [1]}', RequestError, "line 1"),
    ],
)
def test_bad_chats(line: str, kind: type, word: str, tmp_path: Path) -> None:
    """The file and the line are named."""
    llm = LLM("nano", threads=1)
    file = tmp_path / "a.jsonl"
    file.write_text(line + "\n")
    failure(lambda: examples(file, llm.tokenizer, llm.template), kind, "a.jsonl", word)


def test_a_module_and_its_export_answer_alike(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """`sterna eval --torch`: the same questions right, and the log-probabilities that both give."""
    folder = checkpoint("bitnet-online")
    made = export(trainable(folder), tmp_path / "out", folder)
    assert made.n_layers
    record = {
        "activity_label": "Opening files", "ctx_a": "How to read a file. Open it.",
        "ctx_b": "the reader", "endings": ["returns the lines.", "eats it.", "is a class."],
        "label": 0,
    }  # fmt: skip
    data = written(tmp_path / "data.jsonl", record, {**record, "label": 1, "ctx_b": "a file"})
    asked = [
        "eval",
        "hellaswag",
        "--data",
        str(data),
        "--model",
        str(tmp_path / "out"),
        "--kv-dtype",
        "f32",
        "--json",
    ]
    plain = json.loads(command(*asked).stdout)[0]
    result = command(*asked, "--torch", str(folder))
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)[0]
    beside = row.pop("torch")
    for name in ("questions", "acc", "acc_norm", "acc_bytes"):
        assert plain[name] == row[name] == beside[name]
    assert 0 < beside["difference"] < 1e-3
    questions = read_questions(data, "hellaswag")
    llm = LLM(tmp_path / "out", threads=1, kv_dtype="f32")
    module = trainable(folder)
    both = evaluate_both(module, llm, questions)
    ours, theirs = (
        question_scores(x, questions).of for x in (llm, TorchModel(module, llm.tokenizer))
    )
    apart = [abs(a.logprob - b.logprob) for x, y in zip(ours, theirs, strict=True)
             for a, b in zip(x, y, strict=True)]  # fmt: skip
    assert both.difference == max(apart) < 1e-3
    assert [a.greedy for x in ours for a in x] == [a.greedy for x in theirs for a in x]
    shown = command(*asked[:-1], "--torch", str(folder)).stdout
    assert "acc in torch" in shown
    failed(command(*asked, "--torch", str(tmp_path)), str(tmp_path), "transformers opens")
