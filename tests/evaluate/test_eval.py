"""`sterna eval`: the tasks' files, and scores against whole sequences computed one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, failed, failure
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna import LLM, _native
from sterna.engine import PAGE, StepInput, StepOutput
from sterna.engine import Sequence as EngineSequence
from sterna.engine import prompt_logprobs as engine_scoring
from sterna.errors import NonFiniteError, RequestError
from sterna.evaluate import loglikelihood
from sterna.evaluate.loglikelihood import ScoringRequest, encode_pair, score
from sterna.evaluate.tasks import (
    Accuracy,
    Question,
    evaluate,
    hellaswag,
    read_questions,
    winogrande,
)

HELLASWAG = {
    "ind": 4,
    "activity_label": "Opening files",
    "ctx_a": "[header] How to read a file [title] Open it.",
    "ctx_b": "the reader",
    "ctx": "[header] How to read a file [title] Open it. the reader",
    "endings": [
        "returns the  lines [substeps] of the file.",
        "eats the naïve file with a fork and a knife.",
        "return",
        "is a class.",
    ],
    "label": 0,
}
WINOGRANDE = {
    "qID": "3",
    "sentence": "The file was closed by the reader because the _ was done.",
    "option1": "reader",
    "option2": "file",
    "answer": "1",
}
# Endings that share a beginning, a context of one word, and one that fills several steps.
STORIES = [
    HELLASWAG,
    {
        **HELLASWAG,
        "ctx_a": "Read.",
        "ctx_b": "",
        "endings": ["the a", "the b", "the"],
        "label": "2",
    },
    {**HELLASWAG, "ctx_a": "def f(x): return x. " * 20, "endings": ["x", "y"], "label": 1},
]


@pytest.fixture(scope="module")
def nano() -> LLM:
    return LLM("nano", threads=1)


def write(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def whole(llm: LLM, request: ScoringRequest) -> tuple[float, bool]:
    """A request by itself, from the logits of all of its sequence."""
    tokens = list(request.tokens)
    rows = llm.logits(tokens[:-1])[-request.scored :]
    targets = tokens[-request.scored :]
    x = rows.astype(np.float64)
    log_p = x - x.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    greedy = rows.argmax(1).tolist() == targets
    return float(log_p[np.arange(len(targets)), targets].sum()), greedy


def test_a_hellaswag_line() -> None:
    question = hellaswag(HELLASWAG)
    context = "Opening files:  How to read a file.  Open it. The reader".replace("  ", " ")
    assert [c for c, _ in question.choices] == [context] * 4
    assert question.choices[0][1] == "returns the lines of the file."
    assert question.gold == 0
    only_ctx = {k: v for k, v in HELLASWAG.items() if k not in ("ctx_a", "ctx_b")}
    assert hellaswag(only_ctx).choices[0][0].endswith("Open it. the reader")


def test_a_winogrande_line() -> None:
    before = "The file was closed by the reader because the "
    ending = "was done."
    question = winogrande({**WINOGRANDE, "answer": "2"})
    assert question == Question(((f"{before}reader", ending), (f"{before}file", ending)), 1)


def test_the_boundary_is_a_natural_one(nano: LLM) -> None:
    """Spaces belong to what follows them, as in lm-evaluation-harness."""
    pair = encode_pair(nano.tokenizer.encode, "return the lines  ", "of")
    text = nano.tokenizer.decode(pair.tokens[-pair.scored :])
    assert text == "  of"
    assert list(pair.tokens) == nano.tokenizer.encode("return the lines  of")
    melted = encode_pair(nano.tokenizer.encode, "retu", "rn")
    assert (len(melted.tokens), melted.scored) == (2, 1)


@pytest.mark.parametrize("budget", [None, 40, 7])
def test_scores_are_those_of_whole_sequences(
    budget: int | None, nano: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes shared, questions batched, long ones cut in steps: every score is the same."""
    if budget:
        monkeypatch.setattr(engine_scoring, "STEP_LOGITS", 4096 * budget)
    questions = [hellaswag(r) for r in STORIES] + [winogrande(WINOGRANDE)]
    groups = [
        [encode_pair(nano.tokenizer.encode, c, f" {e}") for c, e in q.choices] for q in questions
    ]
    seen: list[int] = []
    free = nano.engine.kv_cache.pool.free
    results = score(nano.engine, groups, seen.append)
    assert seen[-1] == len(groups)
    assert nano.engine.kv_cache.pool.free == free
    for group, scores in zip(groups, results, strict=True):
        for request, got in zip(group, scores, strict=True):
            logprob, greedy = whole(nano, request)
            assert got.logprob == pytest.approx(logprob, abs=1e-5)
            assert got.greedy == greedy
            alone = score(nano.engine, [[request]])
            assert alone == [[got]]  # to the bit


def test_examples_before_every_question_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one group for those that come later, where there is a cache; to the bit."""
    examples = [i * 7 % 400 for i in range(5 * PAGE + 9)]
    groups = [
        [ScoringRequest([*examples, i, i + 1, *[j] * 5], 5) for j in range(3)] for i in range(6)
    ]
    plain = LLM("nano", threads=1, prefix_cache=False)
    expected = score(plain.engine, groups)
    llm, tokens = LLM("nano", threads=1), 0
    run = llm.engine.run

    def counting(inputs: Sequence[StepInput]) -> list[StepOutput]:
        nonlocal tokens
        tokens += sum(len(step_input.tokens) for step_input in inputs)
        return run(inputs)

    monkeypatch.setattr(llm.engine, "run", counting)
    assert score(llm.engine, groups) == expected
    assert tokens < 5 * PAGE + 6 * (PAGE + 3 * 7)
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


@settings(max_examples=25)
@given(data=st.data())
def test_any_groups(data: st.DataObject, nano: LLM) -> None:
    ids = st.lists(st.integers(0, 3), min_size=2, max_size=12)
    requests = st.builds(
        lambda tokens, part: ScoringRequest(tokens, 1 + part % (len(tokens) - 1)),
        ids,
        st.integers(0, 20),
    )
    groups = data.draw(st.lists(st.lists(requests, max_size=3), max_size=4))
    for group, scores in zip(groups, score(nano.engine, groups), strict=True):
        assert scores == [score(nano.engine, [[request]])[0][0] for request in group]


def test_greedy_text_is_greedy(nano: LLM) -> None:
    prompt = nano.tokenizer.encode("def read(path):\n")
    tokens = nano.generate(prompt, max_tokens=6, temperature=0).tokens
    other = [*tokens[:-1], tokens[-1] ^ 1]
    requests = [ScoringRequest([*prompt, *tokens], 6), ScoringRequest([*prompt, *other], 6)]
    first, second = score(nano.engine, [requests])[0]
    assert (first.greedy, second.greedy) == (True, False)


def test_too_long_loses_its_beginning() -> None:
    llm = LLM("nano", threads=1, context=16)
    ids = list(range(300, 340))
    got = score(llm.engine, [[ScoringRequest(ids, 4)]])[0][0]
    assert got == score(llm.engine, [[ScoringRequest(ids[-17:], 4)]])[0][0]
    for bad in (ScoringRequest(ids, 17), ScoringRequest(ids, 0), ScoringRequest([5], 1)):
        failure(lambda bad=bad: score(llm.engine, [[bad]]), RequestError, "score", "16")


def test_rewind(nano: LLM) -> None:
    sequence = EngineSequence()
    nano.engine.prefill(sequence, [1, 2, 3])
    for length in (-1, 4):
        failure(lambda n=length: nano.engine.kv_cache.rewind(sequence, n), RequestError, "0..3")
    nano.engine.kv_cache.rewind(sequence, 1)
    resumed = nano.engine.prefill(sequence, [2, 3])
    nano.engine.kv_cache.release(sequence)
    assert (resumed == nano.logits([1, 2, 3])[-1]).all()


def test_non_finite_scores_are_an_error(nano: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    run = nano.engine.run

    def spoilt(inputs: Sequence[StepInput]) -> list[StepOutput]:
        outputs = run(inputs)
        for one in outputs:
            one.drawn = [_native.SampleResult(2) for _ in one.drawn]  # of no log-probability
        return outputs

    monkeypatch.setattr(nano.engine, "run", spoilt)
    with pytest.raises(NonFiniteError, match="finite"):
        score(nano.engine, [[ScoringRequest([1, 2], 1)]])


def test_metrics() -> None:
    """Sums favour short endings; é has one character and two bytes."""
    question = Question((("c", "ab"), ("c", "éé"), ("c", "abcdef")), 2)
    accuracy = Accuracy()
    for logprobs in ((-2.0, -2.5, -4.0), (-9.0, -9.0, -1.0), (-3.0, -3.0, -9.0)):
        accuracy.add(question, [loglikelihood.Score(x, False) for x in logprobs])
    # Over characters: (-1, -1.25, -0.67), …, (-1.5, -1.5, -1.5): a draw, which the first wins.
    # Over bytes: (-1, -0.625, -0.67), …, (-1.5, -0.75, -1.5).
    assert (accuracy.n, accuracy.right, accuracy.right_norm, accuracy.right_bytes) == (3, 1, 2, 1)
    answers = [1, 0, 0]
    expected = np.std(answers, ddof=1) / math.sqrt(3)
    assert accuracy.share(accuracy.right) == pytest.approx((1 / 3, expected))
    assert all(map(math.isnan, Accuracy().share(0)))


def test_evaluate_counts_right_answers(nano: LLM) -> None:
    questions = [hellaswag(r) for r in STORIES]
    expected = Accuracy()
    for q in questions:
        pairs = [encode_pair(nano.tokenizer.encode, c, f" {e}") for c, e in q.choices]
        expected.add(q, [loglikelihood.Score(*whole(nano, pair)) for pair in pairs])
    got = evaluate(nano, questions)
    assert (got.n, got.right, got.right_norm, got.right_bytes) == (
        expected.n, expected.right, expected.right_norm, expected.right_bytes,
    )  # fmt: skip
    assert 0 < got.right + got.right_norm < 6


def test_the_command(tmp_path: Path) -> None:
    data = str(write(tmp_path / "h.jsonl", STORIES))
    (row,) = json.loads(command("eval", "hellaswag", "--data", data, "--json").stdout)
    assert (row["task"], row["questions"], row["model"]) == ("hellaswag", 3, "nano")
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert row[name] in (0, 1 / 3, 2 / 3, 1)
        assert 0 <= row[f"{name}_stderr"] < 0.5
    shown = command("eval", "hellaswag", "--data", data, "--limit", "2")
    assert "2 questions" in shown.stdout
    assert "acc_norm" in shown.stdout
    assert "±" in shown.stdout
    assert "±" not in command("eval", "hellaswag", "--data", data, "--limit", "1").stdout
    data = str(write(tmp_path / "w.jsonl", [WINOGRANDE] * 2))
    (row,) = json.loads(command("eval", "winogrande", "--data", data, "--json").stdout)
    assert row["acc"] in (0, 1)
    assert row["acc_norm"] is row["acc_bytes"] is None
    assert "acc_norm" not in command("eval", "winogrande", "--data", data).stdout


def change(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {k: v for k, v in {**record, **fields}.items() if v is not ...}


@pytest.mark.parametrize(
    ("task", "record", "words"),
    [
        ("hellaswag", change(HELLASWAG, endings=...), ("endings", "none")),
        ("hellaswag", change(HELLASWAG, endings=["one"]), ("endings", "one")),
        ("hellaswag", change(HELLASWAG, endings=["a", 3]), ("endings[1]", "3")),
        ("hellaswag", change(HELLASWAG, endings=["a", "[b]"]), ("endings[1]", "brackets")),
        ("hellaswag", change(HELLASWAG, endings="abcd" * 99), ("endings", "...")),
        ("hellaswag", change(HELLASWAG, label=4), ("label", "0..3", "4")),
        ("hellaswag", change(HELLASWAG, label=""), ("label", "without answers")),
        ("hellaswag", change(HELLASWAG, label=True), ("label", "True")),
        ("hellaswag", change(HELLASWAG, label="1" * 5000), ("label",)),
        ("hellaswag", change(HELLASWAG, label=-1), ("label", "-1")),
        ("hellaswag", change(HELLASWAG, ctx_a=5), ("ctx_a", "5")),
        ("hellaswag", change(HELLASWAG, ctx_a=..., ctx_b=..., ctx=...), ("ctx", "none")),
        ("hellaswag", change(HELLASWAG, activity_label="\ud800"), ("activity_label", "Unicode")),
        ("hellaswag", WINOGRANDE, ("endings", "file of hellaswag")),
        ("winogrande", change(WINOGRANDE, sentence="no gap"), ("sentence", "gap")),
        ("winogrande", change(WINOGRANDE, sentence="ends in _ "), ("sentence", "after")),
        ("winogrande", change(WINOGRANDE, option2=None), ("option2", "none")),
        ("winogrande", change(WINOGRANDE, answer="3"), ("answer", "1..2")),
        ("winogrande", change(WINOGRANDE, answer=""), ("answer",)),
        ("winogrande", [1], ("JSON object", "list")),
        ("winogrande", None, ("JSON object", "NoneType")),
    ],
)
def test_bad_lines(task: str, record: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    """The error names the file, the line and the field."""
    good = HELLASWAG if task == "hellaswag" else WINOGRANDE
    path = write(tmp_path / "data.jsonl", [good, record])
    assert len(read_questions(path, task, limit=1)) == 1  # what is not read is not checked
    failure(lambda: read_questions(path, task), RequestError, "data.jsonl", "line 2", *words)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """Editors and shells on Windows write one."""
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(HELLASWAG), "utf-8-sig")
    assert len(read_questions(path, "hellaswag")) == 1


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    for content, words in {
        b"": ("has none",),
        b"\n \n": ("has none",),
        b"{": ("line 1", "JSON"),
        b"\xff\n": ("line 1", "JSON"),
        b"[" * 100_000: ("line 1", "JSON"),
        b'"' + b"x" * (1 << 20) + b'"': ("line 1", "bytes"),
    }.items():
        path.write_bytes(content)
        failed(command("eval", "hellaswag", "--data", str(path)), *words)
    failed(command("eval", "hellaswag", "--data", str(tmp_path / "no")), "readable")
    failed(command("eval", "hellaswag"), "--data")
    failed(command("eval", "arc", "--data", str(path)), "winogrande")
    failure(lambda: read_questions(path, "arc"), RequestError, "hellaswag, winogrande")


def test_another_tokenizer(checkpoint: Callable[[str], Path]) -> None:
    llm = LLM(checkpoint("llama-f32"), threads=1)
    result = evaluate(llm, [winogrande(WINOGRANDE), hellaswag(HELLASWAG)])
    assert result.n == 2
