"""`sterna bench figure quality`: which formats change a model's logits, and by how much."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers import command, failed, failure

from sterna import LLM
from sterna.errors import RequestError
from sterna.evaluate.compare import compare
from sterna.evaluate.perplexity import perplexity
from sterna.evaluate.tasks import evaluate, read_questions
from sterna_papers import lookup
from sterna_papers.figures import quality

TEXT = Path(quality.__file__).read_text()[:1500]
LOSSLESS = ["i2", "t5", "tl1_1", "tl2_1"]
QUESTIONS = [
    {"sentence": "A tuple cannot grow but a list can, so append is in the _ class.",
     "option1": "tuple", "option2": "list", "answer": "2"},
    {"sentence": "The loop had no end since the _ was never false.",
     "option1": "condition", "option2": "comment", "answer": "1"},
]  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A file of WinoGrande."""
    path = tmp_path / "winogrande.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file with TEXT."""
    path = tmp_path / "text.py"
    path.write_text(TEXT)
    return path


def run(*args: str) -> Result:
    """The result of `sterna bench figure quality`, of one thread."""
    return command("bench", "figure", "quality", *args, "--threads", "1")


def test_rows(task: Path) -> None:
    """Figures are those of the commands they come from; lossless formats have the model's bits."""
    names = ["q4_0", "tq2_0", "tl1_0", *LOSSLESS]
    rows = quality.run(
        "nano", [TEXT], source="the text", tasks={"winogrande": task}, format_names=names, threads=1
    )
    assert [row["format"] for row in rows] == ["f16", *names]
    at = {row["format"]: row for row in rows}
    for row in rows:
        assert tuple(row) == quality.FIELDS
        assert (row["model"], row["source"], row["skipped"]) == ("nano", "the text", None)
        assert row["lossless"] == (row["format"] in LOSSLESS)
        assert row["hellaswag"] is None
    assert (at["f16"]["kl_mean"], at["f16"]["top1_agreement"]) == (0, 1)
    assert {at[name]["kl_mean"] for name in LOSSLESS} == {at["i2"]["kl_mean"]}
    base, own = (LLM("nano", format=f, threads=1, deterministic=True) for f in ("f16", "tq2_0"))
    expected = compare(base, own, [TEXT])
    assert at["tq2_0"]["kl_mean"] == expected.kl_figures()["mean"]
    assert at["tq2_0"]["tokens"] == expected.n_positions
    assert at["tq2_0"]["perplexity"] == pytest.approx(perplexity(own, [TEXT]).perplexity, rel=1e-4)
    answers = evaluate(own, read_questions(task, "winogrande"))
    assert at["tq2_0"]["winogrande"] == answers.right / answers.n
    assert 0 < at["q4_0"]["kl_mean"] < at["i2"]["kl_mean"] < at["tl1_0"]["kl_mean"]


def test_activations_are_told() -> None:
    """What a row rounds its inputs to."""
    lookup.register()
    told = {name: quality.activations(name) for name in quality.FORMATS}
    assert told["f16"] == "f32"
    assert told["q4_0"] == told["q8_0"] == "int8, a scale for each 32"
    assert told["tq1_0"] == told["tq2_0"] == "int8, a scale for each 256"
    assert {told[name] for name in LOSSLESS} == {"int8, a scale for each token"}
    for name in lookup.ROUNDED:
        assert told[name] == "int8, a scale for each token; int8 tables of sums"


def test_a_format_that_a_model_cannot_have() -> None:
    """Its row says why, and the others are there."""
    rows = quality.run("nano", [TEXT[:200]], format_names=["i1", "i2"], threads=1)
    assert [(row["format"], row["skipped"] is None) for row in rows] == [
        ("f16", True), ("i1", False), ("i2", True),
    ]  # fmt: skip
    assert "packed as i2" in rows[1]["skipped"]
    assert (rows[1]["perplexity"], rows[1]["lossless"]) == (None, None)
    failure(lambda: quality.run("nano", [""], source="a.txt"), RequestError, "a.txt", "two tokens")


def test_a_model_of_floats(checkpoint: Any) -> None:
    """There f16 may be the lossless one; ternary formats are another model."""
    rows = quality.run(str(checkpoint("llama")), [TEXT[:300]], format_names=["i2"], threads=1)
    assert [row["skipped"] for row in rows] == [None, None]
    assert rows[1]["lossless"] is False
    assert rows[1]["kl_mean"] > 1e-3


def test_outputs(text: Path, task: Path, tmp_path: Path) -> None:
    """JSON and CSV have all fields; tables only the tasks that were asked for; a picture."""
    arguments = ("--file", str(text), "--formats", "i2,i1", "--winogrande", str(task))
    picture = tmp_path / "quality.png"
    rows = json.loads(run(*arguments, "--json", "--plot", str(picture)).stdout)
    assert [row["format"] for row in rows] == ["f16", "i2", "i1"]
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    lines = list(csv.DictReader(io.StringIO(run(*arguments, "--csv").stdout)))
    assert [list(line) for line in lines] == [list(row) for row in rows]
    markdown = run(*arguments, "--markdown", "--questions", "1").stdout
    assert "| int8, a scale for each token |" in markdown
    assert "| yes |" in markdown
    assert "WinoGrande acc" in markdown
    assert "HellaSwag" not in markdown
    assert "skipped: nano i1" in markdown
    assert "WinoGrande" not in run("--file", str(text), "--formats", "i2").stdout


def test_errors_name_the_field(text: Path, task: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (["--file", str(tmp_path / "none")], ("none", "readable")),
        (["--file", str(text), "--stdlib"], ("texts", "--stdlib")),
        (["--file", str(text), "--formats", "q9"], ("format", "q9")),
        (["--file", str(text), "--context", "1"], ("context", "2..1024")),
        (["--file", str(text), "--threads", "0"], ("threads",)),
        (["--file", str(text), "--isa", "mmx"], ("isa", "mmx")),
        (["--file", str(text), "--model", str(tmp_path / "gone")], ("gone",)),
        (["--file", str(text), "--hellaswag", str(task)], ("line 1", "endings", "hellaswag")),
        (["--file", str(text), "--questions", "0"], ("--questions",)),
        (["--file", str(text), "--plot", str(tmp_path / "a.pdf")], (".png",)),
    ):
        result = command("bench", "figure", "quality", *arguments)
        failed(result, *words)


def test_texts_that_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first four of the standard library; --stdlib has all."""
    given: list[Any] = []

    def told(*, texts: Any, source: str, **_: Any) -> None:
        given.append((source, texts.paths))
        raise RequestError("enough")

    monkeypatch.setattr(quality, "run", told)
    for arguments in ((), ("--limit", "2"), ("--stdlib",)):
        run(*arguments)
    first, two, every = (paths for source, paths in given if source == "stdlib")
    assert (len(first), first, two) == (4, every[:4], every[:2])
    assert len(every) > 100
