"""Settings, keys, the meter of the context, and a conversation that changes its model."""

from __future__ import annotations

from typing import Any

from page_driver import answer, answered, instead, say, settings, stream, with_models

MODELS = {
    "little": {"meta": {"context": 400, "chat_sampling": {"temperature": 0.5, "top_k": 7}}},
    "large": {"meta": {"context": 4000, "chat_sampling": {"temperature": 0.8, "min_p": 0.05}}},
}
NUMBERS = {
    "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
    "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 60, "seed": 7,
}  # fmt: skip


def test_every_setting_is_sent(page: Any) -> None:
    sent = answered(page, stream({"content": "ok"}))
    texts = {"system": "Be brief.", "stop_texts": "END\nSTOP", "schema": '{"type": "object"}'}
    page.keyboard.press("Control+,")
    page.select_option("#reasoning_effort", "low")
    page.click("#close")
    settings(page, **{name: str(value) for name, value in NUMBERS.items()}, **texts)
    say(page, "x")
    answer(page)
    assert {name: sent[0][name] for name in NUMBERS} == NUMBERS
    assert sent[0]["reasoning_effort"] == "low"
    assert sent[0]["stop"] == ["END", "STOP"]
    assert sent[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    page.reload()
    page.keyboard.press("Control+,")
    assert page.input_value("#top_k") == "40"


def test_another_model_in_a_conversation(page: Any) -> None:
    """The next answer is its own; empty settings show what holds for it."""
    with_models(page, **MODELS)
    sent = answered(page, stream({"content": "ok"}))
    page.select_option("#model", "little")
    assert page.get_attribute("#temperature", "placeholder") == "0.5"
    assert page.get_attribute("#top_k", "placeholder") == "7"
    say(page, "one")
    answer(page)
    page.select_option("#model", "large")
    assert page.get_attribute("#temperature", "placeholder") == "0.8"
    assert page.get_attribute("#top_k", "placeholder") == "0"
    say(page, "two")
    answer(page, 1)
    assert [body["model"] for body in sent] == ["little", "large"]
    assert [message["content"] for message in sent[1]["messages"]] == ["one", "ok", "two"]
    assert "little" in answer(page).text_content()
    assert "large" in answer(page, 1).text_content()


def test_the_used_part_of_the_context(page: Any) -> None:
    """Of the model that answers next."""
    with_models(page, **MODELS)
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    answered(page, stream({"content": "ok"}, usage=usage))
    page.select_option("#model", "little")
    assert page.locator("#context").is_hidden()
    say(page, "x")
    answer(page)
    assert float(page.get_attribute("#context", "value")) == 0.25
    page.select_option("#model", "large")
    assert float(page.get_attribute("#context", "value")) == 0.025


def test_keys(page: Any) -> None:
    """The list names them, and they do what it says."""
    instead(page, "x")
    say(page, "one")
    answer(page)
    page.keyboard.press("Control+/")
    listed = page.locator("#keys th").all_text_contents()
    assert {"Enter", "Shift + Enter", "Esc", "Ctrl + K", "Ctrl + ,"} <= {*listed}
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Control+Shift+O")
    assert page.locator("article").count() == 0
    assert page.evaluate("document.activeElement.id") == "say"
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#say") == "\n"
    page.keyboard.press("Control+,")
    assert page.locator("#settings").is_visible()


def test_right_to_left(page: Any) -> None:
    """Each block has the direction of its own text; code reads from the left."""
    instead(page, "שלום עולם\n\nplain\n\n```\nx = 1\n```")
    say(page, "مرحبا")
    shown = answer(page).locator(".text")
    direction = "node => getComputedStyle(node).direction"
    assert page.locator("article.user .text").evaluate(direction) == "rtl"
    blocks = [shown.locator("p").nth(i).evaluate(direction) for i in range(2)]
    assert blocks == ["rtl", "ltr"]
    assert shown.locator("pre").evaluate(direction) == "ltr"
