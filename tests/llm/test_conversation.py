"""A conversation turn by turn: the bits of a fresh run, for the price of what is new."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_factory import EOT, RECIPES, tokenizer, write
from helpers import cold

from sterna import LLM, Conversation
from sterna.engine import Engine, PrefixCache, Sequence
from sterna.engine.kv_cache.sequence import PAGE
from sterna.errors import RequestError

PLAIN = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


KINDS = [("bitnet-multiply", "i16"), ("bitnet-multiply", "f16"), ("llama-bf16", "i16")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def llm(checkpoint: Callable[[str], Path], request: pytest.FixtureRequest) -> LLM:
    name, kv_dtype = request.param
    return LLM(checkpoint(name), threads=2, kv_dtype=kv_dtype)


def free_pages(llm: LLM) -> int:
    return llm.engine.kv_cache.pool.free


def test_turns_equal_fresh_runs_and_cost_what_is_new(llm: LLM) -> None:
    before = free_pages(llm)
    with Conversation(llm, system="Be brief") as chat:
        computed = 0
        for turn, text in enumerate(["Hello", "And then?", "x" * 100, "Why?"]):
            messages = [*chat.messages, {"role": "user", "content": text}]
            done = chat.ask(text, **PLAIN, seed=turn)
            fresh = cold(llm).chat(messages, **PLAIN, seed=turn)
            assert (done.tokens, done.text) == (fresh.tokens, fresh.text)
            assert fresh.stats.n_cached == 0
            stats = done.stats
            assert stats.n_prompt == fresh.stats.n_prompt
            if turn:
                # Everything up to the earlier answer, whose beginning may join the token before.
                assert stats.n_cached >= computed - 2
            computed = stats.n_prompt
        assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 4]
    assert free_pages(llm) == before


def test_logits_after_resuming_are_those_of_a_fresh_run(llm: LLM) -> None:
    """At every length around a page's end, the next logits have the same bits."""
    generator = np.random.default_rng(3)
    old = [int(t) for t in generator.integers(0, 200, 3 * PAGE)]
    engine = Engine(llm.engine.model, threads=2, kv_dtype=llm.engine.kv_dtype)
    cache = PrefixCache(engine.kv_cache.pool, 100)
    for same in (0, 1, 15, 16, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE):
        first = Sequence()
        engine.prefill(first, old)
        cache.clear()
        cache.insert(np.array(old, np.int32), first, final=True)
        engine.kv_cache.release(first)
        prompt = [*old[:same], 201, *(int(t) for t in generator.integers(0, 200, 40))]
        sequence, seen = cache.match(np.array(prompt, np.int32))
        sequence = sequence or Sequence()
        assert sequence.length == seen == same
        assert len(sequence.pages) == -(-same // PAGE)
        logits = engine.prefill(sequence, prompt[same:])
        assert logits.tobytes() == llm.logits(prompt)[-1].tobytes()
        engine.kv_cache.release(sequence)


def test_the_same_prompt_again_computes_its_last_token(llm: LLM) -> None:
    with Conversation(llm) as chat:
        first = chat.ask("Hello", **PLAIN)
        assert chat.undo() == "Hello"
        assert chat.messages == []
        second = chat.ask("Hello", **PLAIN)
        assert second.tokens == first.tokens
        assert second.stats.n_cached == second.stats.n_prompt - 1
        assert chat.undo() == "Hello"
        assert chat.undo() is None


def test_what_a_conversation_leaves_is_free_to_be_had(llm: LLM) -> None:
    """Its pages stay in the cache for the next turn, which is no page less for others."""
    before = free_pages(llm)
    chat = Conversation(llm)
    stream = chat.stream("Hello", **PLAIN)
    next(stream)
    assert free_pages(llm) < before
    del chat, stream
    gc.collect()
    assert free_pages(llm) == before


def test_an_answer_cut_short_stays(llm: LLM) -> None:
    before = free_pages(llm)
    with Conversation(llm) as chat:
        stream = chat.stream("Hello", **PLAIN)
        text = ""
        while not text:
            text = next(stream).text
        other = chat.stream("More", **PLAIN)  # ends the one before
        assert next(stream, None) is None
        assert chat.messages[1] == {"role": "assistant", "content": text}
        fresh = cold(llm).chat([*chat.messages, {"role": "user", "content": "More"}], **PLAIN)
        assert "".join(piece.text for piece in other) == fresh.text
        assert [m["content"] for m in chat.messages] == ["Hello", text, "More", fresh.text]
        never_started = chat.stream("Gone", **PLAIN)
        chat.reset(system="S")
        assert next(never_started, None) is None
        assert chat.messages == [{"role": "system", "content": "S"}]
    assert free_pages(llm) == before


def test_errors_leave_the_messages_alone(llm: LLM) -> None:
    with Conversation(llm) as chat:
        chat.ask("Hello", **PLAIN)
        before = chat.messages
        with pytest.raises(RequestError, match="top_p"):
            chat.ask("x", top_p=2)
        with pytest.raises(RequestError, match="must fit the context"):
            chat.ask("word " * llm.context)
        with pytest.raises(RequestError, match="must be text"):
            chat.system = 3  # type: ignore[assignment]
        with pytest.raises(RequestError, match="messages"):
            chat.messages = [{"content": "x"}]
        assert chat.messages == before


def test_the_oldest_exchanges_give_way(checkpoint: Callable[[str], Path]) -> None:
    llm = LLM(checkpoint("bitnet-multiply"), threads=1, context=128)
    with Conversation(llm, system="S", context_overflow="truncate-oldest-turn") as chat:
        dropped = []
        for i in range(6):
            done = chat.ask(f"message {i} with some more words", **PLAIN)
            dropped.append(chat.dropped)
            assert done.prompt_tokens <= 128 - 12
        assert dropped[0] == 0
        assert sum(dropped) > 0
        assert chat.system == "S"
        assert chat.messages[-2]["content"] == "message 5 with some more words"
        assert chat.messages[1]["role"] == "user"
        with pytest.raises(RequestError, match="must fit the context"):
            chat.ask("y" * 500, **PLAIN)
    with Conversation(llm) as chat:
        chat.messages = [{"role": "user", "content": "message"}] * 20
        with pytest.raises(RequestError, match="must fit the context"):
            chat.ask("x", **PLAIN)


# ------------------------------------------------------------------------ chat() and its template


def spoil(folder: Path, template: str, eos: list[int] | None = None) -> Path:
    """The checkpoint with another template, and generation_config without the end of a turn."""
    write(folder, RECIPES["bitnet-multiply"])
    (folder / "chat_template.jinja").write_text(template)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = eos or settings["eos_token_id"][:1]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def first_end(llm: LLM, messages: list[dict[str, Any]], end: int) -> tuple[list[int], int]:
    """An answer that contains the id `end`, by a seed that makes it so: (its tokens, the seed)."""
    for seed in range(400):
        done = llm.chat(messages, max_tokens=24, temperature=3.0, seed=seed, ignore_eos=True)
        if end in done.tokens[1:]:
            return done.tokens, seed
    raise AssertionError("no answer has the token")


def test_chat_stops_at_the_end_of_the_turn(tmp_path: Path) -> None:
    """<|eot_id|> is an end here because the template writes it, and only in a chat."""
    end = tokenizer().token_to_id(EOT)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n<|eot_id|>{% endfor %}"
    llm = LLM(spoil(tmp_path / "a", template), threads=2)
    assert end not in llm.tokenizer.eos_ids
    messages = [{"role": "user", "content": "Hello"}]
    tokens, seed = first_end(llm, messages, end)
    options = {"max_tokens": 24, "temperature": 3.0, "seed": seed}
    done = llm.chat(messages, **options)
    eos = set(llm.tokenizer.eos_ids)
    assert done.tokens == tokens[: next(i for i, t in enumerate(tokens) if t in {end, *eos})]
    assert done.finish_reason == "stop"
    plain = llm.generate(llm.chat_tokens(messages), **options)  # a text has no turns
    assert plain.tokens == tokens[: next((i for i, t in enumerate(tokens) if t in eos), None)]

    silent = LLM(spoil(tmp_path / "b", "{{ messages[0].content }}"), threads=2)
    assert silent.renderer.turn_ends == frozenset()
    refusing = "{{ raise_exception('no') if messages | length > 1 }}x"
    assert LLM(spoil(tmp_path / "c", refusing), threads=2).renderer.turn_ends == frozenset()


def test_system_prompts_of_templates_without_a_place(tmp_path: Path) -> None:
    """They open the first message of the user, where a template refuses or drops them."""
    write = "{% for m in messages %}{% if m.role == 'system' %}SYSTEM{% else %}{{ m.content }}"
    write += "{% endif %}{% endfor %}"
    for number, said in enumerate(("{{ raise_exception('no') }}", "")):
        llm = LLM(spoil(tmp_path / str(number), write.replace("SYSTEM", said)), threads=2)
        with Conversation(llm, system="Be brief.") as chat:
            done = chat.ask("Q", **PLAIN)
        assert done.prompt_tokens == len(llm.tokenizer.encode("Be brief.\n\nQ", add_special=False))


def test_template_options_reach_the_template(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if tools %}<t>{{ tools[0].name }}{% endif %}"
        "{% if documents %}<d>{{ documents[0].text }}{% endif %}"
        "{% if add_generation_prompt %}[bot]{% endif %}{{ thinking }}"
    )
    llm = LLM(spoil(tmp_path / "a", template), threads=2)
    user = [{"role": "user", "content": "Q"}]
    options: dict[str, Any] = {
        "tools": [{"name": "f"}],
        "documents": [{"text": "D"}],
        "template_options": {"thinking": "T"},
    }
    assert llm.chat_prompt(user, **options) == "[user]Q<t>f<d>D[bot]T"
    expected = llm.tokenizer.encode("[user]Q<t>f<d>D[bot]T", add_special=False)
    assert llm.chat(user, **options, **PLAIN).prompt_tokens == len(expected)
    with Conversation(llm, **options) as chat:
        assert chat.ask("Q", **PLAIN).prompt_tokens == len(expected)
    going_on = [*user, {"role": "assistant", "content": "So far "}]
    assert llm.chat_prompt(going_on, continue_final_message=True) == "[user]Q[assistant]So far "
    for wrong in (
        {"tools": "x"},
        {"tools": ["x"]},
        {"documents": [1]},
        {"template_options": {"messages": []}},
        {"template_options": {"a b": 1}},
        {"template_options": [1]},
        {"template_options": {"a": object()}},
        {"unknown": 1},
    ):
        with pytest.raises(RequestError):
            llm.chat(user, **wrong, **PLAIN)


def test_threads_take_turns_or_are_told(llm: LLM) -> None:
    """No turn that succeeds is mixed with another; what comes after has the bits of a fresh run."""
    with Conversation(llm) as chat:
        outcomes: list[object] = []

        def ask(i: int) -> None:
            try:
                outcomes.append(chat.ask(f"thread {i}", **PLAIN))
            except RequestError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 4
        assert all("one thread" in str(e) for e in outcomes if isinstance(e, RequestError))
        messages = [*chat.messages, {"role": "user", "content": "final"}]
        assert chat.ask("final", **PLAIN).tokens == cold(llm).chat(messages, **PLAIN).tokens
