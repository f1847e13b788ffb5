"""Rows of conversations, as an actor of Ray answers them; tests/long/ray_cluster.py has actors."""

from __future__ import annotations

from sterna.integrations.ray import Predictor

MESSAGES = [{"role": "user", "content": "def f(x):\n"}]


def test_rows_of_conversations_are_answers_of_chat() -> None:
    """Up to the end of the turn, also where that is no end of a text."""
    options, model_options = {"max_tokens": 40, "temperature": 0}, {"chat_template": "chatml"}
    predictor = Predictor(
        "nano", threads=1, column="said", chat=True, options=options, model_options=model_options
    )
    llm = predictor._llm
    free = llm.chat(MESSAGES, max_tokens=40, temperature=0)
    llm.renderer.turn_ends = frozenset([free.tokens[5]])  # as if the template wrote this token
    done = llm.chat(MESSAGES, max_tokens=40, temperature=0)
    assert len(done.tokens) <= 5 < len(free.tokens)
    row = predictor({"said": [MESSAGES]})
    assert (row["text"], row["text_tokens"]) == ([done.text], [len(done.tokens)])
    assert row["text_finish_reason"] == ["stop"] == [done.finish_reason]
