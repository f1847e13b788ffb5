"""Answers: as the server gives them, token by token, stopped, edited, continued, queued."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from page_driver import answer, answered, content, say, settings, stream
from server_process import ServerProcess


def test_an_answer(page: Any, server: ServerProcess) -> None:
    """As the server gives it; its request, copied, makes the same again."""
    settings(page, max_tokens="40", temperature="1")
    say(page, "def f(x):")
    answer(page)
    text = content(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page).get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    (body,) = re.findall(r"-d '(.*)'$", copied, re.DOTALL)
    again = server.post("/v1/chat/completions", **json.loads(body.replace("'\\''", "'")))
    assert again.json()["choices"][0]["message"]["content"] == text
    assert "first token after" in page.locator("#status").text_content()


def test_alternatives_of_a_token(page: Any, server: ServerProcess) -> None:
    settings(page, max_tokens="5", temperature="0")
    say(page, "def f(x):")
    token = answer(page).locator(".t").nth(1)
    at = token.evaluate("one => one.token.at")
    token.click()
    rows = page.locator("#card tr")
    rows.nth(7).wait_for()  # the page asks for them when it is clicked
    assert rows.count() == 8
    body = {
        "messages": [{"role": "user", "content": "def f(x):"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    found = server.post("/v1/chat/completions", **body, logprobs=True, top_logprobs=8).json()
    exact = [t["logprob"] for t in found["choices"][0]["logprobs"]["content"][at]["top_logprobs"]]
    shown = [float(rows.nth(i).locator("td").nth(2).text_content()) for i in range(8)]
    assert shown == exact
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()


def test_stop_edit_again(page: Any, server: ServerProcess) -> None:
    """A stopped answer ends in the engine, too; an edited message starts a new answer."""
    settings(page, max_tokens="900")
    say(page, "x = 1")
    page.locator("article.assistant .t").first.wait_for(state="attached")
    page.keyboard.press("Escape")
    answer(page)
    until = time.monotonic() + 20
    while server.running():
        assert time.monotonic() < until
    settings(page, max_tokens="4")
    answer(page)
    stopped = content(page)
    answer(page).get_by_role("button", name="Regenerate").click()
    answer(page)
    assert page.locator("article.assistant .version").text_content() == "2/2"
    page.get_by_role("button", name="Previous version").click()
    answer(page)
    assert content(page) == stopped
    page.locator("article.user").hover()
    page.get_by_role("button", name="Edit").click()
    assert page.input_value("#say") == "x = 1"
    say(page, "y = 2")
    answer(page)
    assert page.locator("article").count() == 2
    assert page.locator("article.user .version").text_content() == "2/2"
    page.get_by_role("button", name="Previous version").first.click()
    answer(page)
    assert content(page) == stopped


def test_continuing(page: Any, server: ServerProcess) -> None:
    """An answer that was cut off goes on where it ended."""
    settings(page, max_tokens="5", temperature="0")
    say(page, "def f(x):")
    answer(page)
    first = content(page)
    settings(page, max_tokens="9")
    answer(page).get_by_role("button", name="Continue").click()
    page.wait_for_function("before => pathOf(chat)[1].content.length > before", arg=len(first))
    answer(page)
    assert content(page).startswith(first)
    assert page.locator("article").count() == 2


def test_an_answer_goes_on(page: Any, server: ServerProcess) -> None:
    """While another conversation is open; a reload makes it again, to the bit."""
    settings(page, max_tokens="900", temperature="1", seed="7")
    network = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": 40_000, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", slow)  # the built-in model is too fast to see
    say(page, "import os")
    page.locator("article.assistant .t").first.wait_for(state="attached")
    page.click("#new")
    assert page.locator("article").count() == 0
    page.locator("#list li.running button").first.click()
    page.locator("article.assistant .t").nth(10).wait_for(state="attached")
    network.send("Network.emulateNetworkConditions", {**slow, "downloadThroughput": -1})
    page.reload()
    answer(page)
    text = content(page)
    body = {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 900}
    same = server.post("/v1/chat/completions", **body, temperature=1, seed=7).json()
    assert text == same["choices"][0]["message"]["content"]


def test_enter_queues(page: Any) -> None:
    """A message sent during an answer is asked after it; if the answer is stopped, it waits."""
    settings(page, max_tokens="100", temperature="1")
    # In one go, since the built-in model's answers are soon over.
    sends = "texts => { for (const text of texts) { $('say').value = text; send(); }"
    queued = page.evaluate(sends + " return chat.queue.length; }", ["one", "two", "three"])
    assert queued == 2
    answer(page, 2)
    assert page.locator("article.user .text").all_text_contents() == ["one", "two", "three"]
    assert page.locator("#queue li").count() == 0
    page.evaluate(sends + " stop(chat); }", ["four", "five"])
    page.get_by_role("button", name="Take back").click()
    assert page.input_value("#say") == "five"
    assert page.locator("#queue li").count() == 0


def test_reasoning(page: Any) -> None:
    """They are folded when the answer begins."""
    answered(page, stream({"reasoning_content": "hm"}, {"content": "yes"}))
    say(page, "x")
    answer(page)
    reasoning = page.locator("article.assistant details.reasoning")
    assert reasoning.get_attribute("open") is None
    reasoning.locator("summary").click()
    assert reasoning.locator(".text").is_visible()


@pytest.mark.parametrize(("nbytes", "seen"), [(1e3, True), (1e15, False)])
def test_the_share_of_memory(page: Any, nbytes: float, seen: bool) -> None:
    """No more than all of it: weights that come from a cache have no share."""
    meta = {"bytes_per_token": nbytes, "bandwidth_gb_s": 0.1 if seen else 1.0}
    page.route(
        "**/v1/models",
        lambda route: route.fulfill(json={"data": [{"id": "nano", "meta": meta}]}),
    )
    page.reload()
    page.locator("#model option").wait_for(state="attached")
    settings(page, max_tokens="400", temperature="1", seed="7")
    say(page, "import os")
    answer(page)
    said = page.locator("#status").text_content()
    assert "first token after" in said
    assert ("of memory bandwidth" in said) == seen
