"""Constrained answers: never a text that the constraint does not describe, with drafts as without;
what would not be enforced is refused.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
from click.testing import CliRunner, Result
from helpers import add_token_beyond, failure

from sterna import LLM
from sterna.cli import main
from sterna.engine.decoding import constraints
from sterna.engine.decoding.constraints import Constraint
from sterna.engine.decoding.grammars import ToolCall
from sterna.engine.scheduling.step_costs import StepCosts
from sterna.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 3, "maximum": 44},
        "of": {"enum": ["red", "green", None]},
    },
    "required": ["name", "age", "of"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=2)


def accepts(llm: LLM, constraint: Constraint, text: str) -> bool:
    """Whether a text may be the whole answer, token by token as masks have it."""
    matcher, tokens = constraint.matcher(), llm.tokenizer.encode(text, add_special=False)
    for i in range(len(tokens)):
        matcher.follow(np.array(tokens[:i], np.int32))
        if not matcher.valid(tokens[i : i + 1]):
            return False
    matcher.follow(np.array(tokens, np.int32))
    (mask,) = matcher.masks([], llm.tokenizer.eos_ids)
    return all(mask[end // 32] >> end % 32 & 1 for end in llm.tokenizer.eos_ids)


def walk(llm: LLM, constraint: Constraint, rng: random.Random) -> str | None:
    """A text at random that the constraint allows; None where it has not ended in time."""
    matcher, tokens = constraint.matcher(), list[int]()
    (end,) = llm.tokenizer.eos_ids
    for i in range(60):
        matcher.follow(np.array(tokens, np.int32))
        if matcher.ended:
            break
        (mask,) = matcher.masks([], [end])
        flags = np.unpackbits(mask.view(np.uint8), bitorder="little")
        ids = np.flatnonzero(flags).tolist()
        if end in ids and (i > 20 or rng.random() < 0.3 or len(ids) == 1):
            break
        tokens.append(rng.choice([t for t in ids if t != end]))
    else:
        return None
    return llm.tokenizer.decode(tokens)


# ---------------------------------------------------------------------------------------- answers


def test_answers_keep_to_them(llm: LLM) -> None:
    """At any temperature; a finished one is JSON of the schema, and says that it stopped."""
    constraint = llm.constraints.json_schema(PERSON)
    judge = jsonschema_rs.validator_for(PERSON)
    for seed in range(6):
        done = llm.generate(
            "I am", constraint=constraint, temperature=2.0, seed=seed, max_tokens=500
        )
        assert done.finish_reason == "stop"
        assert judge.is_valid(json.loads(done.text))
    for make, pattern in (
        (llm.constraints.regex(r"[0-9]{3}-[a-f]+"), r"[0-9]{3}-[a-f]+"),
        (llm.constraints.choice(["yes", "no", "no way"]), "yes|no|no way"),
        (llm.constraints.lark('start: "a" (/[bc]/ "d")* "e"'), "a([bc]d)*e"),
    ):
        for seed in range(4):
            done = llm.generate("x", constraint=make, temperature=3.0, seed=seed, max_tokens=60)
            if done.finish_reason == "stop":
                assert re.fullmatch(pattern, done.text)
            else:
                assert len(done.tokens) == 60
    done = llm.generate("x", constraint=llm.constraints.json_schema(PERSON), max_tokens=3)
    assert (done.finish_reason, done.text[0]) == ("length", "{")


def test_drafts_change_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an exact head. What the grammar forces comes several tokens a step."""
    monkeypatch.setattr(StepCosts, "knows", lambda self, tokens: False)  # the usual, by no clock
    plain = LLM("nano", threads=1, speculate="off", head="bf16")
    exact = LLM("nano", threads=1, head="exact")
    text = '{"name":"abc","age":17,"of":"red"}'
    forced = 0
    for options in (
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 3, "logprobs": 2},
        {"temperature": 1.0, "seed": 4, "top_k": 20, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 5, "prediction": text, "bad_words": ["green"]},
        {"temperature": 0.0, "prediction": f'{{"name":"<|end|>{text}<|end|>{text}'},
        {"temperature": 2.0, "seed": 6, "allowed_token_ids": range(1, 4000), "min_tokens": 4},
    ):
        answers = []
        for one in (plain, llm, exact):
            constraint = one.constraints.json_schema(PERSON)
            done = one.generate("He is", constraint=constraint, **options)
            answers.append((done.tokens, done.text, done.finish_reason, done.logprobs))
        assert answers[0] == answers[1] == answers[2]
        forced += done.stats.n_accepted
    assert forced > 30


def test_ends(llm: LLM) -> None:
    """Where a text may end, each end of the answer is allowed; without ends it goes on."""
    number = llm.constraints.regex("[0-9]+")
    likely = dict.fromkeys(llm.tokenizer.eos_ids, 5.0)
    done = llm.generate("1", constraint=number, temperature=3.0, seed=1, logit_bias=likely)
    assert done.finish_reason == "stop"
    assert done.text.isdigit()
    on = llm.generate("1", constraint=number, ignore_eos=True, max_tokens=40, seed=1)
    assert (on.finish_reason, on.text.isdigit(), len(on.tokens)) == ("length", True, 40)
    own = llm.generate(
        "1", constraint=number, ignore_eos=True, stop_token_ids=[7], logit_bias={7: 100}
    )
    assert (own.finish_reason, own.text.isdigit()) == ("stop", True)


def test_calls_of_tools(llm: LLM) -> None:
    """Text is free up to a trigger, which opens a call and nothing else."""
    calls = [
        ToolCall('<call>{"name": "add", "arguments": ', PERSON, "}</call>"),
        ToolCall(
            '<call>{"name": "now", "arguments": ',
            {"type": "object", "maxProperties": 0},
            "}</call>",
        ),
    ]
    now = '<call>{"name": "now", "arguments": {}}</call>'
    free = llm.constraints.tools(calls, "<call>")
    assert accepts(llm, free, "Hello <b>you</b>!\n")
    assert accepts(llm, free, f"Well: {now} and {now}")
    assert not accepts(llm, free, "Well: <call>now</call>")
    assert not accepts(llm, free, 'x <call>{"name": "add", "arguments": {"age": 4}}</call>')
    required = llm.constraints.tools(calls, "<call>", required=True)
    assert accepts(llm, required, now)
    assert not accepts(llm, required, f"Well: {now}")
    assert accepts(llm, required, now + now)
    single = llm.constraints.tools(calls, "<call>", required=True, several=False)
    assert [accepts(llm, single, text) for text in (now, now + now, "")] == [True, False, False]
    once = llm.constraints.tools(calls, "<call>", several=False)
    texts = ("Hi.", f"Well: {now}", now, now + now, f"{now} <call>", "<call>")
    assert [accepts(llm, once, text) for text in texts] == [True] * 3 + [False] * 3
    failure(lambda: llm.constraints.tools(calls, "<tool>"), RequestError, "tools", "<tool>")
    bad = [ToolCall("<call>", {"not": {}})]
    failure(lambda: llm.constraints.tools(bad, "<call>"), RequestError, "not")


def test_other_refusals(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns, grammars and choices that are none; too large, too slow; no library."""
    make = llm.constraints
    for call, *words in (
        (lambda: make.regex("ä["), "regex: unclosed character class at 1"),
        (lambda: make.regex("a\n["), "regex: unclosed character class"),
        (lambda: make.regex(""), "regex", "empty"),
        (lambda: make.regex("\ud800"), "regex", "Unicode"),
        (lambda: make.regex("a" * (1 << 19)), "regex", "bytes"),
        (lambda: make.lark("begin: /a/"), "grammar", "start"),
        (lambda: make.choice([]), "choice", "0"),
        (lambda: make.choice(["a", ""]), "choice", "empty"),
        (lambda: make.choice("yes"), "choice"),
    ):
        failure(call, RequestError, *words)
    intersected = " & ".join(["/.*a.*/"] * 13)
    failure(lambda: make.lark(f"start: A\nA: {intersected}"), RequestError, "grammar", "12")
    assert make.lark('start: A\nA: /[&]{30}/ "&&&&&&&&&&&&&&" // &&&&&&&&&&&&').matcher()
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    other = constraints.Constraints(llm.tokenizer, 4096)
    failure(lambda: other.regex("a"), RequestError, "sterna[constraints]")


def test_constraints_of_another_model(llm: LLM, checkpoint: Callable[[str], Path]) -> None:
    """Another copy of the same model takes them, another model does not."""
    yes = llm.constraints.choice(["yes"])
    assert LLM("nano", threads=1).generate("x", constraint=yes).text == "yes"
    other = LLM(checkpoint("llama-bf16"), threads=1)
    failure(lambda: other.generate("x", constraint=yes), RequestError, "constraint", "tokens")
    failure(lambda: other.generate("x", constraint="yes"), RequestError, "constraint", "yes")
    assert other.generate("x", constraint=other.constraints.choice(["yes"])).text == "yes"


def test_a_vocabulary_with_more_added_tokens_than_the_model(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("llama-bf16"), tmp_path / "m")
    add_token_beyond(folder, "<image>")
    other = LLM(folder, threads=1)
    yes = other.constraints.choice(["yes"])
    assert other.generate("x", constraint=yes).text == "yes"
    failure(lambda: other.generate("<image>"), RequestError, "text", "<image>")


def test_a_grammar_that_grows_too_complex_ends_the_answer(llm: LLM) -> None:
    """With its error: an answer is never left free."""
    constraint = llm.constraints.regex("(?:a?){30000}a{30000}")
    failure(lambda: llm.generate("x", constraint=constraint), RequestError, "gave up", "too many")
    constraint = llm.constraints.regex("ab*")
    nothing = {"allowed_token_ids": llm.tokenizer.encode("c", add_special=False)}
    failure(lambda: llm.generate("x", constraint=constraint, **nothing), RequestError, "no token")


def test_a_list_of_prompts_and_choices(llm: LLM) -> None:
    """Side by side, with drafts of each, as alone."""
    constraint = llm.constraints.json_schema(PERSON)
    options = {"temperature": 1.0, "seed": 7, "max_tokens": 300, "constraint": constraint}
    prompts = ["I am", "He is called", "x"]
    together = llm.generate(prompts, **options)
    alone = [llm.generate(prompt, **options) for prompt in prompts]
    assert [d.text for d in together] == [d.text for d in alone]
    assert {d.finish_reason for d in together} == {"stop"}
    choices = llm.choices("I am", 3, **options)
    assert [d.text for d in choices] == [
        llm.generate("I am", choice=i, **options).text for i in range(3)
    ]
    # What one of them cannot go on with ends it alone.
    bad = llm.constraints.regex("(?:a?){30000}a{30000}")
    requests = [
        llm.requests.make_several("I am", 1, {**options, "constraint": c})[0]
        for c in (constraint, bad)
    ]
    for _ in llm.engine_loop.finished(requests):
        pass
    assert (requests[0].completion.text, requests[0].error) == (alone[0].text, None)
    assert isinstance(requests[1].error, RequestError)


def test_several_at_once(checkpoint: Callable[[str], Path]) -> None:
    """One constraint serves any number of answers, in threads of their own."""
    llm = LLM("nano", threads=1)
    constraint = llm.constraints.json_schema(PERSON)
    alone = llm.generate("a", constraint=constraint, temperature=1.0, seed=5).text
    texts: list[str] = []

    def answer() -> None:
        texts.append(llm.generate("a", constraint=constraint, temperature=1.0, seed=5).text)

    threads = [threading.Thread(target=answer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [alone] * 3


def test_the_command(tmp_path: Path) -> None:
    """Each option of `sterna generate`; a schema or a grammar as a text or a file."""
    file = tmp_path / "schema"
    file.write_text(json.dumps(PERSON), encoding="utf-8")

    def run(*args: str) -> Result:
        return CliRunner().invoke(main, ["generate", "x", "--max-tokens", "500", *args])

    judge = jsonschema_rs.validator_for(PERSON)
    for schema in (str(file), file.read_text()):
        assert judge.is_valid(json.loads(run("--json-schema", schema).stdout))
    assert re.fullmatch("[0-9]{3}", run("--regex", "[0-9]{3}").stdout)
    assert run("--choice", "yes", "--choice", "no").stdout in ("yes", "no")
    file.write_text('start: "a" /[bc]/', encoding="utf-8")
    for grammar in (str(file), file.read_text()):
        assert run("--grammar", grammar).stdout in ("ab", "ac")
    for words, *args in (
        ("--regex and --choice", "--regex", "a", "--choice", "b"),
        ("nothing at this path", "--json-schema", str(tmp_path / "none")),
        ("not", "--json-schema", '{"not": {}}'),
    ):
        failed = run(*args)
        assert (failed.exit_code, failed.stderr.count("\n")) == (2, 1)
        assert words in failed.stderr
