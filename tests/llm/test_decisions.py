"""`LLM.decide`: probabilities of given answers, alone and among others, on every unit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ISAS, cold, command, failed, failure
from server_process import ServerProcess, serving

from sterna import LLM, AsyncLLM, Decision
from sterna.errors import ContextError, RequestError

CONTEXT = "def read(path):\n    with open(path) as file:\n        return file.read()\n" * 6
ASKED = ["Does it read a file?", "Does it write?", "Is path a number?"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


def numbers(decision: Decision) -> tuple[Any, ...]:
    return decision.probabilities, decision.logprobs, decision.neutral_logprobs, decision.value


def prompt_of(llm: LLM, question: str, request: str) -> str:
    text = f"{CONTEXT}\n\n{request}\n\nQuestion: {question}"
    if llm.template is None:
        return f"{text}\nAnswer:"
    return llm.chat_prompt([{"role": "user", "content": text}])


def likelihood(llm: LLM, prompt: str, option: str) -> float:
    """By `prompt_logprobs`, which computes the whole prompt."""
    special = llm.template is None
    before = llm.tokenizer.encode(prompt, add_special=special)
    ids = llm.tokenizer.encode(prompt + option, add_special=special)
    scores = llm.prompt_logprobs(ids)
    return math.fsum(one.logprob for one in scores[len(before) :] if one)


def test_logprobs_are_those_of_the_text(llm: LLM) -> None:
    """Of options of one token and of several, after a context that others share."""
    gap = "" if llm.template else " "
    options = ["Yes", "No", "It is a function", "if"]
    found = llm.decide(CONTEXT, ASKED, options=options)
    request = "\n".join(
        ["Answer the question with one of these only:", *(f"- {o}" for o in options)]
    )
    for question, decision in zip(ASKED, found, strict=True):
        prompt = prompt_of(llm, question, request)
        for option in options:
            expected = likelihood(llm, prompt, gap + option)
            assert decision.logprobs[option] == pytest.approx(expected, abs=1e-5)
        assert math.fsum(decision.probabilities.values()) == pytest.approx(1)
        assert decision.answer == max(options, key=decision.probabilities.__getitem__)
        assert min(decision.lengths.values()) == 1 < max(decision.lengths.values())


def test_alone_and_among_others(llm: LLM) -> None:
    """The same bits, from a cold start, in a batch, and in an event loop; with all options."""
    for options in (
        {},
        {"options": {"Yes": "it does", "Yes, always": "", "No": ""}, "normalise": True},
        {"score": (1, 12), "neutral": "N/A"},
    ):
        alone = [cold(llm).decide(CONTEXT, question, **options) for question in ASKED]
        together = llm.decide(CONTEXT, ASKED, **options)

        async def deciding(options: dict[str, Any] = options) -> list[Decision]:
            async with AsyncLLM(llm) as engine:
                return await engine.decide([CONTEXT, "a"], ASKED, **options)

        in_loop = asyncio.run(deciding())
        assert list(map(numbers, together)) == list(map(numbers, alone))
        assert list(map(numbers, in_loop[:3])) == list(map(numbers, alone))
        assert len(in_loop) == 6
    # The context's last, partial page was shared as well.
    assert together[-1].stats.n_cached > len(llm.tokenizer.encode(CONTEXT)) - 16


def test_a_question_waits_until_it_may_be_queued(llm: LLM) -> None:
    """As those of a batch do while clients use the model."""
    queued: list[bool] = []

    async def ready() -> None:
        while llm.engine_loop.scheduler.busy:
            await asyncio.sleep(0.01)
        queued.append(llm.engine_loop.scheduler.busy)
        if len(queued) == len(ASKED) + 2:
            raise TimeoutError

    async def deciding() -> list[Decision]:
        async with AsyncLLM(llm) as engine:
            return await engine.decide(CONTEXT, ASKED, ready=ready)

    assert list(map(numbers, asyncio.run(deciding()))) == list(
        map(numbers, llm.decide(CONTEXT, ASKED))
    )
    assert queued == [False] * len(ASKED)
    with pytest.raises(TimeoutError):
        asyncio.run(deciding())
    assert len(queued) == len(ASKED) + 2


def test_one_option_begins_another(llm: LLM) -> None:
    """Then their ends count, and the shorter one is not likelier for being shorter."""
    found = llm.decide(CONTEXT, ASKED[0], options=["a", "a b", "c"])
    assert found.lengths["a"] == 2
    apart = llm.decide(CONTEXT, ASKED[0], options=["a", "b", "c"])
    assert apart.lengths["a"] == 1


def test_a_score_is_a_mean(llm: LLM) -> None:
    found = llm.decide(CONTEXT, ASKED[0], score=(-1, 3))
    shares = found.probabilities
    assert found.value == pytest.approx(sum(int(text) * p for text, p in shares.items()))
    assert [*shares] == ["-1", "0", "1", "2", "3"]


def test_neutral_and_normalised(llm: LLM) -> None:
    plain = llm.decide(CONTEXT, ASKED[0], options=["a b c", "d"])
    shifted = llm.decide(CONTEXT, ASKED[0], options=["a b c", "d"], neutral="N/A", normalise=True)
    assert plain.logprobs == shifted.logprobs
    assert shifted.neutral_logprobs is not None
    weights = [
        (shifted.logprobs[o] - shifted.neutral_logprobs[o]) / shifted.lengths[o]
        for o in shifted.logprobs
    ]
    share = 1 / (1 + math.exp(weights[1] - weights[0]))
    assert shifted.probabilities["a b c"] == pytest.approx(share, rel=1e-5)


def test_the_same_bits_on_every_unit() -> None:
    """So a threshold holds elsewhere."""
    found = [numbers(LLM("nano", threads=1, isa=isa).decide(CONTEXT, ASKED[0])) for isa in ISAS]
    assert all(one == found[0] for one in found)


def test_messages_and_lists(llm: LLM) -> None:
    messages = [{"role": "user", "content": CONTEXT}]
    assert numbers(llm.decide(messages, ASKED[0])) == numbers(llm.decide(CONTEXT, ASKED[0]))
    longer = [*messages, {"role": "assistant", "content": "A function."}]
    assert llm.decide(longer, ASKED[0]).logprobs != llm.decide(messages, ASKED[0]).logprobs
    both = llm.decide(["a", CONTEXT], ASKED[0])
    assert numbers(both[1]) == numbers(llm.decide(CONTEXT, ASKED[0]))


def test_refused(llm: LLM) -> None:
    decide: Any = llm.decide
    for words, given in (
        ("options", {"options": ["a"]}),
        ("options", {"options": "ab"}),
        ("options", {"options": ["a", "a"]}),
        ("score", {"score": (3, 3)}),
        ("both", {"score": (1, 3), "options": ["a", "b"]}),
        ("normalise", {"normalise": 1}),
    ):
        failure(lambda given=given: decide(CONTEXT, "?", **given), RequestError, words)
    failure(lambda: decide(CONTEXT, ""), RequestError, "question")
    failure(lambda: decide([{"role": "user"}], "?"), RequestError, "context")
    failure(lambda: decide("a " * llm.context, "?"), ContextError, "context")


def test_cache_keeps_the_context_alone(llm: LLM) -> None:
    other = cold(llm)
    llm.decide(CONTEXT, ASKED[0])
    cache = llm.engine.kv_cache.pool.cache
    assert cache is not None
    before = cache.pages
    llm.decide(CONTEXT, [f"{question} {i}" for i in range(20) for question in ASKED])
    assert cache.pages == before
    assert other is not llm


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("decide"), "nano") as running:
        yield running


def test_over_http(server: ServerProcess, llm: LLM) -> None:
    expected = llm.decide(CONTEXT, ASKED, options=["a", "b c"])
    said = server.post(
        "/v1/decide", context=CONTEXT, question=ASKED, options=["a", "b c"], model="nano"
    ).json()
    for row, decision in zip(said["data"], expected, strict=True):
        assert {o["text"]: o["probability"] for o in row["options"]} == decision.probabilities
        assert {o["text"]: o["logprob"] for o in row["options"]} == decision.logprobs
        assert row["answer"] == decision.answer
    assert said["normalised"] is False
    assert said["system_fingerprint"].startswith("st-")
    several = server.post("/v1/decide", context=[CONTEXT, "b"], question="?", score=[1, 3]).json()
    assert [row["context"] for row in several["data"]] == [0, 1]
    refused = server.post("/v1/decide", context="a", question=[])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "question")
    refused = server.post("/v1/decide", context="a", question="?", options=["a"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "options")


def test_system_one(server: ServerProcess) -> None:
    """Its clients' form: typed questions by name, about any JSON."""
    said = server.post(
        "/v1/systemone",
        state={"message": "def f(x):"},
        model="nano",
        questions={
            "code": {"type": "noul", "instructions": "Is it code?"},
            "safe": {"type": "noul", "instructions": "?", "criteria": {"true": "no harm"}},
            "kind": {"type": "choice", "instructions": "?", "criteria": {"py": None, "c": "C"}},
            "rank": {"type": "score", "instructions": "?", "criteria": ["low", "mid", "high"]},
        },
    ).json()["answers"]
    assert 0 < said["code"]["noul"] < 1
    assert said["kind"]["choice"] in ("py", "c")
    assert sum(said["kind"]["probabilities"].values()) == pytest.approx(1)
    assert said["rank"]["legend"] == {"0": "low", "1": "mid", "2": "high"}
    assert 0 <= said["rank"]["score"] <= 2
    refused = server.post("/v1/systemone", state="a", questions={})
    assert refused.status_code == 400


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(CONTEXT)
    lines = command("decide", *ASKED, "--file", str(file), "--score", "1-5").stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(ASKED[0])
    failed(command("decide", "?", "--file", str(file), "--score", "x"), "score")
