"""The page in Chromium; see README.md."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_process import ServerProcess, serving

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("page"), "nano") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context(viewport={"width": 1100, "height": 800})
    made.set_default_timeout(WAIT_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: Any, server: ServerProcess) -> Iterator[Any]:
    """The page, on whose console nothing may be said."""
    made, said = context.new_page(), []
    made.on("pageerror", lambda error: said.append(str(error)))
    made.on("console", lambda m: said.append(m.text) if "Content Security" in m.text else None)
    made.goto(server.url)
    yield made
    assert said == []


def settings(page: Any, **values: str) -> None:
    page.keyboard.press("Control+,")
    for name, value in values.items():
        page.fill(f"#{name}", value)
    page.click("#close")


def say(page: Any, text: str) -> None:
    page.fill("#say", text)
    page.keyboard.press("Enter")


def answer(page: Any, nth: int = 0) -> Any:
    """An answer that has ended."""
    page.locator("article.assistant .tools").nth(nth).wait_for()
    return page.locator("article.assistant").nth(nth)


def instead(page: Any, *contents: str, end: str = "data: [DONE]\n\n") -> None:
    """Answers of a server that is not ours: content in chunks."""
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": c}, "logprobs": None}]} for c in contents
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )


def test_an_answer(page: Any, server: ServerProcess) -> None:
    """As the server gives it; its request, copied, makes the same again."""
    settings(page, max_tokens="40", temperature="1")
    say(page, "def f(x):")
    text = answer(page).locator(".text").text_content()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page).get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    (body,) = re.findall(r"-d '(.*)'$", copied, re.DOTALL)
    again = server.post("/v1/chat/completions", **json.loads(body.replace("'\\''", "'")))
    assert again.json()["choices"][0]["message"]["content"] == text
    assert "tok/s" in page.locator("#status").text_content()


def test_alternatives_of_a_token(page: Any, server: ServerProcess) -> None:
    settings(page, max_tokens="5", temperature="0")
    say(page, "def f(x):")
    answer(page).locator(".t").nth(2).click()
    rows = page.locator("#card tr")
    rows.nth(7).wait_for()  # the page asks for them when it is clicked
    assert rows.count() == 8
    body = {
        "messages": [{"role": "user", "content": "def f(x):"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    found = server.post("/v1/chat/completions", **body, logprobs=True, top_logprobs=8).json()
    exact = [t["logprob"] for t in found["choices"][0]["logprobs"]["content"][2]["top_logprobs"]]
    shown = [float(rows.nth(i).locator("td").nth(2).text_content()) for i in range(8)]
    assert shown == exact
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()


def test_stop_edit_again(page: Any, server: ServerProcess) -> None:
    """What is stopped ends in the engine, too; a message that is edited begins anew."""
    settings(page, max_tokens="900")
    say(page, "x = 1")
    page.locator("article.assistant .t").first.wait_for(state="attached")
    page.keyboard.press("Escape")
    answer(page)
    until = time.monotonic() + 20
    while server.running():
        assert time.monotonic() < until
    settings(page, max_tokens="4")
    answer(page).get_by_role("button", name="Again").click()
    answer(page)
    page.locator("article.user").hover()
    page.get_by_role("button", name="Edit").click()
    assert page.input_value("#say") == "x = 1"
    say(page, "y = 2")
    answer(page)
    assert page.locator("article").count() == 2


def test_hostile_output(page: Any) -> None:
    """Markup, right-to-left, and lines that are none of code."""
    text = "<script>document.title='x'</script><img src=x onerror=alert(1)>\n"
    text += "\u202egnp.exe\u202c\n``not\n"
    instead(page, *text, "```html\n<b>code</b>\n", "```\nafter `x`")
    say(page, "<img src=x onerror=alert(1)>")
    shown = answer(page).locator(".text")
    assert shown.text_content() == f"{text}<b>code</b>\nafter `x`"
    assert shown.locator("pre").text_content() == "<b>code</b>\n"
    assert page.locator("article img, article script, article b").count() == 0
    assert page.title() == "Sterna"
    page.reload()
    page.locator("#list button").first.click()
    assert answer(page).locator(".text").text_content() == f"{text}<b>code</b>\nafter `x`"
    assert page.locator("article img, article script").count() == 0


def test_ten_megabytes(page: Any) -> None:
    """A part is shown and kept, Copy has all; conversations before it stay."""
    instead(page, "short")
    say(page, "little")
    answer(page)
    page.click("#new")
    page.unroute_all()
    instead(page, *(["word " * 2000] * 1000))
    say(page, "much")
    assert 400_000 < len(answer(page).locator(".text").text_content()) < 401_000
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer(page).get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("async () => (await navigator.clipboard.readText()).length") == 10_000_000
    page.reload()
    assert page.locator("#list li").count() == 2


@pytest.mark.parametrize("end", ["", 'data: {"error": {"message": "it broke"}}\n\n'])
def test_an_answer_that_breaks(page: Any, end: str) -> None:
    instead(page, "so far", end=end)
    say(page, "x")
    said = answer(page).locator(".wrong").text_content()
    assert said == f"Not finished: {'it broke' if end else 'the connection was lost'}."
    assert "so far" in answer(page).text_content()
    page.unroute_all()
    settings(page, max_tokens="2")
    page.get_by_role("button", name="Try again").click()
    page.locator("article.assistant .facts").wait_for()
    assert page.locator(".wrong").count() == 0


def test_without_a_server(page: Any) -> None:
    page.context.set_offline(True)
    say(page, "x")
    assert answer(page).locator(".wrong").text_content() == "The server cannot be reached."


def test_a_key(browser: Any, tmp_path: Any) -> None:
    """It is asked for where it is missing, and kept."""
    with serving(tmp_path, "nano", "--api-key", "sesame") as server:
        page = browser.new_context().new_page()
        page.goto(server.url)
        settings(page, key="sesame", max_tokens="3")
        page.locator("#model option").first.wait_for(state="attached")
        say(page, "x")
        assert answer(page).locator(".wrong").count() == 0


def test_two_tabs(context: Any, server: ServerProcess) -> None:
    """What one writes, the other lists; neither loses the other's."""
    pages = [context.new_page() for _ in range(2)]
    for page in pages:
        page.goto(server.url)
    settings(pages[0], max_tokens="3")
    pages[1].reload()
    for page, text in zip(pages, ("one", "two"), strict=True):
        say(page, text)
        answer(page)
    for page in pages:
        page.locator("#list li").nth(1).wait_for()
        assert sorted(page.locator("#list li button:first-child").all_text_contents()) == [
            "one",
            "two",
        ]


@pytest.mark.parametrize("width", [360, 1200])
def test_no_sideways_scrolling(page: Any, width: int) -> None:
    instead(page, "```\n" + "x" * 500 + "\n```\n" + "y" * 500)
    page.set_viewport_size({"width": width, "height": 700})
    say(page, "z" * 300)
    answer(page)
    wide: Callable[[str], int] = page.evaluate
    assert wide("() => document.scrollingElement.scrollWidth") <= width
